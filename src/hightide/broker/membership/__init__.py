"""A broker's place in the cluster: identity, registration, ZooKeeper session and configs."""
