"""The controller's decisions: leader election, placement, reassignment, AlterPartition."""
