"""The console on real clusters, and in a real browser."""
