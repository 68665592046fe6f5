"""ZooKeeper's connect string, `HOST:PORT[,HOST:PORT]…[/CHROOT]`."""

import re
from typing import NamedTuple

from folkmoot.protocol.errors import ConfigError

_SERVER = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s\[\]:/,@]+))(?::(?P<port>\d{1,5}))?"
)
_CHROOT = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/\s\x00-\x1f\x7f-\x9f]+)*")
_DEFAULT_PORT = 2181


class ConnectString(NamedTuple):
    """`servers` as kazoo takes them; `chroot` empty, or with a leading and no trailing slash; `addresses`
    are host and port of each server."""

    servers: str
    chroot: str
    addresses: list[tuple[str, int]]


def parse(zookeeper: str) -> ConnectString:
    """Raises ConfigError."""
    servers, slash, chroot = zookeeper.strip().partition("/")
    chroot = (slash + chroot).rstrip("/")
    names = [name.strip() for name in servers.split(",")]
    addresses = []
    wrong = None if _CHROOT.fullmatch(chroot) else f"{chroot!r} is not a path"
    for name in names:
        found = _SERVER.fullmatch(name)
        port = int(found["port"] or _DEFAULT_PORT) if found else 0
        if found is None or not 0 < port < 65536:
            wrong = f"{name!r} is not a server's address"
            break
        addresses.append((found["ipv6"] or found["host"], port))
    if wrong is not None:
        raise ConfigError(
            f"zookeeper={zookeeper!r} is not HOST:PORT[,HOST:PORT...][/CHROOT]: {wrong}"
        )
    return ConnectString(",".join(names), chroot, addresses)
