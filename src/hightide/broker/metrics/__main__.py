"""`python -m hightide.broker.metrics` prints the reference page."""

from hightide.broker.metrics.declarations import reference_page

print(reference_page(), end="")
