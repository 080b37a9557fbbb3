"""Groups of the classic protocol: JoinGroup, SyncGroup, LeaveGroup and their rebalance."""
