"""The jars of ZooKeeper's server, in `jars/`."""
