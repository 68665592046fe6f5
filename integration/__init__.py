"""ZooKeeper and broker containers, and the tests that need Docker."""
