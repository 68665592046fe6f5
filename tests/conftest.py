"""Fixtures for all tests here."""

from tests.servers import (
    chroot,
    empty_chroot,
    private_zookeeper,
    shared_cluster,
    start_cluster,
    zookeeper,
    zookeeper_root,
)

__all__ = [
    "chroot",
    "empty_chroot",
    "private_zookeeper",
    "shared_cluster",
    "start_cluster",
    "zookeeper",
    "zookeeper_root",
]
