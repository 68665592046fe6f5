"""The address of a cluster: ZooKeeper's connect string, `HOST:PORT[,HOST:PORT]…[/CHROOT]`."""

import re
from typing import NamedTuple

from folkmoot.protocol.errors import ConfigError

_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/,@]+)(?::(?P<port>\d{1,5}))?")
_CHROOT = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/\s\x00-\x1f\x7f-\x9f]+)*")


class ConnectString(NamedTuple):
    """`servers` as kazoo takes them, `chroot` empty or with a slash before and none behind."""

    servers: str
    chroot: str


def parse(zookeeper: str) -> ConnectString:
    """Raises ConfigError."""
    servers, slash, chroot = zookeeper.strip().partition("/")
    chroot = (slash + chroot).rstrip("/")
    names = [name.strip() for name in servers.split(",")]
    for name in names:
        found = _SERVER.fullmatch(name)
        if found is None or not 0 < int(found["port"] or 2181) < 65536:
            raise ConfigError(
                f"zookeeper={zookeeper!r} is not HOST:PORT[,HOST:PORT...][/CHROOT]: "
                f"{name!r} is not a server's address"
            )
    if _CHROOT.fullmatch(chroot) is None:
        raise ConfigError(
            f"zookeeper={zookeeper!r} is not HOST:PORT[,HOST:PORT...][/CHROOT]: "
            f"{chroot!r} is not a path"
        )
    return ConnectString(",".join(names), chroot)


def addresses(zookeeper: str) -> list[tuple[str, int]]:
    """Host and port of every server of a connect string. Raises ConfigError."""
    found = []
    for name in parse(zookeeper).servers.split(","):
        host, colon, port = name.rpartition(":")
        if not colon or "]" in port:
            host, port = name, "2181"
        found.append((host.strip("[]"), int(port)))
    return found
