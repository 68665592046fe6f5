"""What ZooKeeper holds of consumer groups."""
