"""Lets all tests share `seeds`: there are no test packages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
