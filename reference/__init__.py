"""Pages of docs/reference that are derived from the code: `python -m reference` writes them.

A page is a function `page() -> str` in a module with the page's name.  The pages of settings and
metrics are made by `hightide.settings` and `hightide.broker.metrics` themselves.
"""
