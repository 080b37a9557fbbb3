"""`python -m hightide.settings` prints the reference page."""

from hightide.settings.reference import reference_page

print(reference_page(), end="")
