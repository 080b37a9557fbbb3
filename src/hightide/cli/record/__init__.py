"""`hightide produce` and `hightide consume`: records as lines of text or JSON."""
