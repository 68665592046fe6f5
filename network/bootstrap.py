"""Finding brokers at addresses that were given, without ZooKeeper."""

import time
from collections.abc import Sequence
from math import inf
from typing import Final

from folkmoot.network.client import Connections
from folkmoot.protocol.addresses import HostNames, bootstrap_addresses
from folkmoot.protocol.errors import BrokerUnreachable
from folkmoot.protocol.messages import Api, MetadataRequest

CONNECT_WAIT: Final = 10.0
PAUSE: Final = 0.05


class Bootstrap:
    """Some of a cluster's brokers, of which one is enough: it tells of all others.

    From then on the brokers that metadata names count, also when none of these is one of them any more.
    One thread at a time may call.
    """

    def __init__(
        self, addresses: str | Sequence[str], client_id: str, request_timeout: float = inf
    ) -> None:
        """Raises ConfigError."""
        self._request_timeout = request_timeout
        self._addresses = bootstrap_addresses(addresses)
        self._client_id = client_id

    def open(self) -> None:
        """Return as soon as one of them answers. Raises BrokerUnreachable if none does."""
        deadline = time.monotonic() + min(CONNECT_WAIT, self._request_timeout)
        names = HostNames(each.rpartition(":")[0].strip("[]") for each in self._addresses)
        question = MetadataRequest([])
        with Connections(self._client_id) as connections:
            for address in self._addresses:
                connections.send(address, Api.METADATA, question)
            errors: dict[str, str] = {}
            while (left := deadline - time.monotonic()) > 0:
                for reply in connections.poll(left):
                    if reply.error is None:
                        return
                    errors[reply.address] = str(reply.error)
                    connections.send(reply.address, Api.METADATA, question)
                time.sleep(PAUSE)  # one that starts says at once that it knows nothing yet
        why = "; ".join(errors.get(each, f"{each} does not answer") for each in self._addresses)
        if unresolved := names.unresolved():
            why = f"{unresolved}; {why}"
        raise BrokerUnreachable(
            f"no broker of bootstrap={','.join(self._addresses)} answers: {why}"
        )

    def __call__(self) -> Sequence[str]:
        return self._addresses

    def close(self) -> None:
        """There is nothing to close: connections are their users'."""
