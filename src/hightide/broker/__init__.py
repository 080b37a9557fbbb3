"""The broker: network, handlers, replication, controller and coordinators around the pure core."""
