"""Groups of real processes on a real ZooKeeper ensemble, under all faults at once: `make chaos`."""
