"""ZooKeeper as operations and sessions, over kazoo and in memory."""
