"""The systems that are compared: how each is installed, started and stopped, and its client programs."""

from benchmarks.peers.base import Server, Unavailable
from benchmarks.peers.folkmoot import FolkmootServer
from benchmarks.peers.kafka import KafkaServer
from benchmarks.peers.nats import NatsServer
from benchmarks.peers.redis import RedisServer

ALL: tuple[type[Server], ...] = (FolkmootServer, KafkaServer, RedisServer, NatsServer)

__all__ = ["ALL", "Server", "Unavailable"]
