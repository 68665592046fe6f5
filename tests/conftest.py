"""Fixtures for all tests here."""

from tests.servers import (
    chroot,
    private_zookeeper,
    shared_cluster,
    start_cluster,
    zookeeper,
    zookeeper_root,
)

__all__ = [
    "chroot",
    "private_zookeeper",
    "shared_cluster",
    "start_cluster",
    "zookeeper",
    "zookeeper_root",
]
