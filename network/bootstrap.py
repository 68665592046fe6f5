"""Brokers at given addresses, for clients without ZooKeeper."""

from collections.abc import Sequence
from typing import Final, Protocol

from folkmoot.network.ask_any import ask_any
from folkmoot.network.client import ClientConfig, Connections
from folkmoot.protocol.addresses import HostNames, bootstrap_addresses
from folkmoot.protocol.errors import BrokerUnreachable
from folkmoot.protocol.messages import Api, MetadataRequest

CONNECT_WAIT: Final = 10.0


class BootstrapConfig(ClientConfig, Protocol):
    """The options of a client that finds brokers without ZooKeeper."""

    @property
    def bootstrap(self) -> str | Sequence[str]: ...
    @property
    def request_timeout(self) -> float: ...


class Bootstrap:
    """The addresses of some of a cluster's brokers; metadata names all others, and counts from then on.

    One thread at a time may call.
    """

    def __init__(self, config: BootstrapConfig) -> None:
        """Raises ConfigError."""
        self._config = config
        self._addresses = bootstrap_addresses(config.bootstrap)

    def open(self) -> None:
        """Return as soon as one of them answers. Raises BrokerUnreachable if none does."""
        names = HostNames(address.rpartition(":")[0].strip("[]") for address in self._addresses)
        errors: dict[str, str] = {}
        with Connections.of(self._config) as connections:
            wait = min(CONNECT_WAIT, self._config.request_timeout)
            for reply in ask_any(
                connections, self._addresses, Api.METADATA, MetadataRequest([]), wait
            ):
                if reply.error is None:
                    return
                errors[reply.address] = str(reply.error)
        why = "; ".join(
            errors.get(address, f"{address} does not answer") for address in self._addresses
        )
        if unresolved := names.unresolved():
            why = f"{unresolved}; {why}"
        raise BrokerUnreachable(
            f"no broker of bootstrap={','.join(self._addresses)} answers: {why}"
        )

    def __call__(self) -> Sequence[str]:
        return self._addresses

    def close(self) -> None:
        """Do nothing: connections belong to their users."""
