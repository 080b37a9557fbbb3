"""The contents of topics: read a part of them, show records, write and replay them."""
