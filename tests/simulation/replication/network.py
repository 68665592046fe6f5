"""Connections between simulated processes: in order within one, in any between them, until they break."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from math import inf
from typing import Any, NamedTuple

from folkmoot.network.client import Reply
from folkmoot.network.server import Message
from folkmoot.protocol import wire
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    FolkmootError,
    InvalidRequest,
    RequestTimeout,
    from_wire,
)
from folkmoot.protocol.messages import Api
from tests.simulation.replication.coordination import MOMENT
from tests.simulation.world import World

NOTICED_AFTER = (0.0, 0.02, 0.3)
"""When an end of a connection hears that it has broken."""

Frames = Sequence[bytes | bytearray | memoryview]


class Network:
    """Who reaches whom. Brokers listen at their numbers; `cut` has the pairs whose messages are lost."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cut: set[tuple[str, str]] = set()
        self.loss = 0.0
        """How often a message is lost, and its connection with it."""
        self.listening: dict[str, BrokerSocket] = {}
        self._ids = count(0, 10_000)

    def take_ids(self, number: int) -> range:
        """Producer ids that nobody else has had."""
        first = next(self._ids)
        return range(first, first + number)

    def loses(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self.cut or (
            self.loss > 0.0 and self.world.random.random() < self.loss
        )


class Channel:
    """One connection of a client to a broker. What is lost on it is its end."""

    def __init__(self, network: Network, client: Client, address: str, number: int) -> None:
        self.network = network
        self.client = client
        self.address = address
        self.peer = b"%s/%d" % (client.name.encode(), number)
        self.server = network.listening.get(address)
        self._is_broken = False
        self._clear = {True: 0.0, False: 0.0}

    def send(self, frames: Frames, *, to_broker: bool) -> None:
        if self._is_broken:
            return
        world, ends = self.network.world, (self.client.name, self.address)
        copies = [bytes(each) for each in frames]
        if self.server is None or self.network.loses(*(ends if to_broker else ends[::-1])):
            self.broke()
            return
        arrives = max(self._clear[to_broker] + MOMENT, world.now + world.delay())
        self._clear[to_broker] = arrives
        world.at(arrives, partial(self._arrive, copies, to_broker))

    def _arrive(self, frames: list[bytes], to_broker: bool) -> None:
        ends = (self.client.name, self.address)
        server = self.server
        is_cut = (ends if to_broker else ends[::-1]) in self.network.cut
        if is_cut or server is None or self.network.listening.get(self.address) is not server:
            self.broke()
        elif self._is_broken:
            return
        elif to_broker:
            server.arrived(self, frames)
        else:
            self.client.arrived(frames)

    def broke(self) -> None:
        if not self._is_broken:
            self._is_broken = True
            world = self.network.world
            world.after(world.random.choice(NOTICED_AFTER), partial(self.client.lost, self))


class _Asked(NamedTuple):
    begun: float
    deadline: float
    api: Api
    address: str
    request: Any


class Client:
    """What a client, or a broker's fetcher, takes for its `Connections`."""

    def __init__(self, network: Network, name: str, wake: Callable[[], None]) -> None:
        self.name = name
        self._network = network
        self._wake = wake
        self._ids = count(1)
        self._connections = count(1)
        self._channels: dict[str, Channel] = {}
        self._waiting: dict[int, _Asked] = {}
        self._replies: list[Reply] = []

    # -- `Connections` ------------------------------------------------------------------------------

    def send(
        self,
        address: str,
        api: Api,
        request: Any,
        payloads: Frames = (),
        *,
        timeout: float = 1.0,
        expect_reply: bool = True,
    ) -> int:
        number = next(self._ids)
        world = self._network.world
        self._waiting[number] = _Asked(world.now, world.now + timeout, api, address, request)
        world.after(timeout, self._wake)
        channel = self._channels.get(address)
        if channel is None:
            channel = Channel(self._network, self, address, next(self._connections))
            self._channels[address] = channel
        envelope = wire.encode_request(api, number, self.name, request)
        channel.send((envelope, *payloads), to_broker=True)
        return number

    def poll(self, wait: float, wake: Any = None) -> list[Reply]:
        return self.handle_events({})

    def handle_events(self, events: Mapping[Any, int]) -> list[Reply]:
        now = self._network.world.now
        for number, asked in list(self._waiting.items()):
            if asked.deadline <= now:
                self._end(number, RequestTimeout(f"{asked.address} did not answer"))
        replies, self._replies = self._replies, []
        return replies

    def next_event(self) -> float:
        if self._replies:
            return -inf
        return min((each.deadline for each in self._waiting.values()), default=inf)

    @property
    def owed(self) -> int:
        return len(self._waiting)

    def has_in_flight(self, address: str, api: Api) -> bool:
        return any(each.address == address and each.api is api for each in self._waiting.values())

    def late(self, since: float) -> dict[str, list[Any]]:
        found: defaultdict[str, list[Any]] = defaultdict(list)
        for asked in self._waiting.values():
            found[asked.address].append(asked.request)
        late = dict.fromkeys(
            asked.address
            for asked in self._waiting.values()
            if asked.begun + getattr(asked.request, "max_wait", 0.0) < since
        )
        return {address: found[address] for address in late}

    def drop(self, address: str, reason: str) -> None:
        self._channels.pop(address, None)
        for number, asked in list(self._waiting.items()):
            if asked.address == address:
                self._end(number, BrokerUnreachable(f"{address}: {reason}"))

    def close(self, *, linger: float = 0.0) -> None:
        self._channels.clear()
        self._waiting.clear()

    # -- what comes back ----------------------------------------------------------------------------

    def arrived(self, frames: list[bytes]) -> None:
        envelope = wire.decode_response(frames[0])
        if envelope.correlation_id not in self._waiting:
            return
        _, _, api, address, _ = self._waiting.pop(envelope.correlation_id)
        response, error = None, None
        try:
            if envelope.error:
                error = from_wire(envelope.error, envelope.message)
            else:
                response = wire.response_body(api, envelope)
        except InvalidRequest as invalid:
            error = invalid
        payloads = [memoryview(each) for each in frames[1:]]
        self._replies.append(
            Reply(envelope.correlation_id, address, api, response, error, payloads)
        )
        self._wake()

    def lost(self, channel: Channel) -> None:
        """A connection is found to be broken: what waits for an answer gets none."""
        if self._channels.get(channel.address) is not channel:
            return
        del self._channels[channel.address]
        for number, asked in list(self._waiting.items()):
            if asked.address == channel.address:
                self._end(number, BrokerUnreachable(f"{asked.address} is gone"))
        self._wake()

    def _end(self, number: int, error: FolkmootError) -> None:
        _, _, api, address, _ = self._waiting.pop(number)
        self._replies.append(Reply(number, address, api, None, error, []))


class BrokerSocket:
    """What a broker's event loop takes for its `ServerSocket`."""

    def __init__(self, network: Network, address: str, wake: Callable[[], None]) -> None:
        self.poller = None
        self._network = network
        self._address = address
        self._wake = wake
        self._channels: dict[bytes, Channel] = {}
        self._inbox: list[Message] = []
        network.listening[address] = self

    def arrived(self, channel: Channel, frames: list[bytes]) -> None:
        self._channels[channel.peer] = channel
        self._inbox.append(Message(channel.peer, [memoryview(each) for each in frames]))
        self._wake()

    def wait(self, timeout: float | None) -> dict[int, int]:
        return {}

    def end_stalled_connections(self) -> bool:
        return False

    def receive(self, limit: int) -> list[Message]:
        some, self._inbox = self._inbox[:limit], self._inbox[limit:]
        if self._inbox:
            self._wake()
        return some

    def send(self, peer: bytes, frames: Frames) -> bool:
        self._channels[peer].send(frames, to_broker=False)
        return True

    def watch(self, descriptor: int) -> None:
        pass

    def close(self, linger: float = 0.0) -> None:
        if self._network.listening.get(self._address) is self:
            del self._network.listening[self._address]
