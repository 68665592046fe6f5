"""The systems that are compared: how each is installed, started and stopped, and its client programs."""

from benchmarks.peers.base import Peer, Server, Unavailable
from benchmarks.peers.folkmoot import FolkmootPeer
from benchmarks.peers.kafka import KafkaPeer
from benchmarks.peers.nats import NatsPeer
from benchmarks.peers.redis import RedisPeer

ALL: tuple[type[Peer], ...] = (FolkmootPeer, KafkaPeer, RedisPeer, NatsPeer)

__all__ = ["ALL", "FolkmootPeer", "Peer", "Server", "Unavailable"]
