"""Questions that any broker can answer."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Final

from folkmoot.network.client import REQUEST_TIMEOUT, Connections, Reply
from folkmoot.protocol.messages import Api

PAUSE: Final = 0.1


def ask_any(
    connections: Connections,
    addresses: Sequence[str],
    api: Api,
    request: Any,
    timeout: float,
    *,
    patience: float | None = None,
    again: bool = True,
) -> Iterator[Reply]:
    """Ask brokers, and yield each reply; the caller stops when it has its answer.

    All are asked at once. With `patience` they are asked one by one, each after that many seconds without
    an answer. With `again` those that have replied are asked anew after a pause, for `timeout` seconds in
    all.
    """
    deadline, ask_at = time.monotonic() + timeout, -inf
    waiting, in_flight = deque(addresses), 0
    while (waiting or in_flight) and (now := time.monotonic()) < deadline:
        while ask_at <= now and waiting and (patience is None or not in_flight):
            limit = REQUEST_TIMEOUT if patience is None else min(patience, deadline - now)
            connections.send(waiting.popleft(), api, request, timeout=limit)
            in_flight += 1
        until = min(ask_at, deadline) if now < ask_at else deadline
        for reply in connections.poll(until - now):
            in_flight -= 1
            if again:
                waiting.append(reply.address)
                ask_at = time.monotonic() + PAUSE  # a broker that starts refuses at once
            yield reply
