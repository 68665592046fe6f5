"""Tests of what ZooKeeper is asked, on a real one and on its twin."""
