"""Schemas with ids, versions and rules of succession, kept in ZooKeeper."""
