"""All that ZooKeeper knows; the only folder that imports kazoo."""
