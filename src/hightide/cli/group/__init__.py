"""`hightide group …`: consumer groups, their members, offsets and lag."""
