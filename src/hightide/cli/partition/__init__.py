"""`hightide partition …`: leaders, replicas, elections and reassignments."""
