"""The options of a broker process, each with its range.

Every value is checked where the object is made; a ConfigError names the option.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from folkmoot.coordination.topic_config import DAY, FOREVER, LogConfig
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.options import Bytes, BytesPerSecond, Seconds, check_options

MAX_BROKER_ID: Final = 2**31 - 1

_LISTENER: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:@\[\]]+):(?P<port>[0-9]{1,5})")
_ANY_ADDRESS: Final = ("0.0.0.0", "[::]")


@dataclass(frozen=True, slots=True)
class Listener:
    """An address that a broker binds, and the advertised one, under which clients find it.

    They differ across networks, as with containers. Port 0 binds a free port; an advertised port 0 is the
    port that was bound. IPv6 hosts are written in brackets.
    """

    name: str
    bind_host: str
    bind_port: int
    advertised_host: str
    advertised_port: int

    def __post_init__(self) -> None:
        if not _LISTENER.fullmatch(self.name):
            raise ConfigError(f"listener name {self.name!r} is not allowed: use a-z, 0-9, '-', '_'")
        for option, port in (("port", self.bind_port), ("advertised port", self.advertised_port)):
            if type(port) is not int or not 0 <= port <= 65535:
                raise ConfigError(
                    f"listener {self.name}: {option}={port!r} is not allowed: "
                    "use a whole number from 0 to 65535"
                )
        for host in (self.bind_host, self.advertised_host):
            if not _ADDRESS.fullmatch(f"{host}:0"):
                raise ConfigError(f"listener {self.name}: {host!r} is not a host")
        if self.advertised_host in _ANY_ADDRESS:
            raise ConfigError(
                f"listener {self.name}: {self.advertised_host} is no address that a client can "
                f"reach: add one, as in {self.name}={self.bind_host}:{self.bind_port}@HOST:PORT"
            )

    def __repr__(self) -> str:
        advertised = f"{self.advertised_host}:{self.advertised_port}"
        bound = f"{self.bind_host}:{self.bind_port}"
        return f"{self.name}={bound}" + f"@{advertised}" * (advertised != bound)

    @classmethod
    def parse(cls, text: str) -> "Listener":
        """A listener written `NAME=BINDHOST:PORT[@ADVERTISEDHOST:PORT]`. Raises ConfigError."""
        name, _, addresses = text.partition("=")
        bound_text, at, advertised_text = addresses.partition("@")
        bound = _ADDRESS.fullmatch(bound_text)
        advertised = _ADDRESS.fullmatch(advertised_text) if at else bound
        if bound is None or advertised is None:
            raise ConfigError(
                f"listener {text!r} is not understood: write NAME=HOST:PORT or NAME=HOST:PORT@HOST:PORT"
            )
        return cls(
            name, bound["host"], int(bound["port"]), advertised["host"], int(advertised["port"])
        )

    def advertised(self, bound_port: int) -> str:
        """The "host:port" for the broker's znode, once `bound_port` is known."""
        return f"{self.advertised_host}:{self.advertised_port or bound_port}"


DEFAULT_LISTENER: Final = Listener("client", "127.0.0.1", 0, "127.0.0.1", 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig:
    """One broker process."""

    broker_id: Annotated[int, Meta(ge=0, le=MAX_BROKER_ID)]
    """Names the broker in its cluster, for good: it is written into the data directory."""

    data: Path
    """Directory of the logs, made if missing, used by one broker at a time."""

    zookeeper: str
    """The cluster's address: ZooKeeper's connect string with its chroot."""

    listeners: tuple[Listener, ...] = (DEFAULT_LISTENER,)
    """Addresses at which the broker answers, and their addresses for others: `NAME=HOST:PORT[@HOST:PORT]`, in
    text with commas between several; port 0 is a free one. Clients use the listener `client` by default,
    other brokers `internal` if there is one of that name, else `client`."""

    session_timeout: Annotated[Seconds, Meta(ge=0.5, le=300)] = 6.0
    """Seconds after which ZooKeeper takes a silent broker for dead."""

    rack: str = ""
    """The broker's location; members of a group may prefer leaders near them."""

    default_replicas: Annotated[int, Meta(ge=1, le=100)] = 1
    """The number of replicas of a new topic by default; the highest of all brokers counts."""

    open_segments: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """The number of segments that may have files open at a time."""

    scrub_period: Annotated[Seconds, Meta(ge=1, le=FOREVER)] = 7 * DAY
    """The seconds in which each sealed segment is read once and compared with its checksums."""

    compaction_memory_bytes: Annotated[Bytes, Meta(ge=4096, le=2**40)] = 64 * 1024 * 1024
    """Memory for keys in compaction, 160 bytes each and their length. More keys take several passes."""

    compaction_bytes_per_second: Annotated[BytesPerSecond, Meta(ge=1024, le=2**40)] = (
        64 * 1024 * 1024
    )
    """The most that compaction reads and writes."""

    metrics_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """The port of /metrics for Prometheus, /healthz and /readyz; 0 is a free port, None: there is none."""

    metrics_host: str = "127.0.0.1"
    """The address of that port; 0.0.0.0 stands for all addresses of the machine."""

    log_format: Literal["text", "json"] = "text"
    """How the log is written: text, or json, an object a line, with time, level, logger, message."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is written; `info` has elections, changes of in-sync replicas, and brokers that
    come and go."""

    log: LogConfig = field(default_factory=LogConfig)
    """For topics that have no settings of their own."""

    def __post_init__(self) -> None:
        check_options(self)
        if not self.zookeeper.strip() or self.zookeeper.startswith("/"):
            raise ConfigError(
                f"zookeeper={self.zookeeper!r} is not allowed: use HOST:PORT[,HOST:PORT]...[/chroot]"
            )
        names = [listener.name for listener in self.listeners]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"listeners={names!r} is not allowed: name each once, at least one")
