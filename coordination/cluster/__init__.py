"""The cluster as a whole in ZooKeeper: controller, elections, reassignments, events."""
