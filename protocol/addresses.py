"""The cluster of a client: its ZooKeeper, or the addresses of some of its brokers."""

import logging
import re
import socket
import threading
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Final

from folkmoot.protocol.errors import ConfigError

log = logging.getLogger(__name__)

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:@/,\[\]]+):(?P<port>[0-9]{1,5})")


def bootstrap_addresses(bootstrap: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in `"host:port,host:port"`, or in a list of such texts, each once.

    IPv6 hosts are written in brackets. Raises ConfigError.
    """
    texts: Sequence[object] = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    addresses = tuple(dict.fromkeys(str(text).strip() for text in texts))
    for address in addresses:
        matched = _ADDRESS.fullmatch(address)
        if matched is None or not 0 < int(matched["port"]) <= 65535:
            raise ConfigError(
                f"bootstrap={bootstrap!r} is not allowed: {address!r} is no address of a broker; "
                "use HOST:PORT[,HOST:PORT]..."
            )
    return addresses


def check_cluster(zookeeper: object, bootstrap: str | Sequence[str]) -> None:
    """Raise ConfigError unless exactly one of the two is given, and names a server."""
    if bool(zookeeper) == bool(bootstrap):
        reason = "not both" if zookeeper else "one of them is missing"
        raise ConfigError(
            "a client finds its cluster by zookeeper='HOST:PORT[/CHROOT]' or by "
            f"bootstrap='HOST:PORT,...': {reason}"
        )
    if bootstrap:
        bootstrap_addresses(bootstrap)
    elif isinstance(zookeeper, str) and not zookeeper.partition("/")[0].strip():
        raise ConfigError(
            f"zookeeper={zookeeper!r} is not allowed: use HOST:PORT[,HOST:PORT]...[/chroot]"
        )


class HostNames:
    """Looks names up on a thread of its own, since that may take seconds; logs each that does not resolve."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._unresolved: list[str] = []
        if names := [host for host in dict.fromkeys(hosts) if not _is_address(host)]:
            look_up = threading.Thread(target=self._look_up, args=(names,), daemon=True)
            look_up.name = "folkmoot-host-names"
            look_up.start()

    def _look_up(self, names: list[str]) -> None:
        for name in names:
            try:
                socket.getaddrinfo(name, None)
            except OSError as error:
                log.warning("host name %s does not resolve: %s", name, error.strerror or error)
                self._unresolved.append(name)

    def unresolved(self) -> str:
        """Return a sentence about those that are known not to resolve, or an empty text."""
        names = self._unresolved
        return (
            f"{', '.join(names)} {'does' if len(names) == 1 else 'do'} not resolve" if names else ""
        )


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
