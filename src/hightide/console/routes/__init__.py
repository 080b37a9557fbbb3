"""The console's HTTP interface: each module has `routes`, and says at its head what they are."""
