"""`python -m reference` writes the pages; with names of pages, only those."""

from __future__ import annotations

import sys

from reference.pages import FOLDER, PAGES, page

for name in sys.argv[1:] or PAGES:
    (FOLDER / f"{name}.md").write_text(page(name), "utf-8")
