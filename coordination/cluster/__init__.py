"""What ZooKeeper keeps about the cluster as a whole."""
