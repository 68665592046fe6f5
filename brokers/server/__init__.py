"""One event loop: requests, what waits, the broker's place in ZooKeeper."""
