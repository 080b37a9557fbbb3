"""The controller: leader election, replica placement, reassignment, AlterPartition."""
