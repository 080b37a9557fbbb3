"""The replica manager and its parts: replicas, purgatory, fetchers, ISR changes."""
