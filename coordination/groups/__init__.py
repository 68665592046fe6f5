"""Consumer groups in ZooKeeper."""
