"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A busy machine makes no example too slow.
settings.register_profile("hightide", deadline=None)
settings.load_profile("hightide")
