"""What is counted of requests."""

import pytest

from folkmoot.brokers.server.purgatory import Request
from folkmoot.brokers.server.request_counters import RequestCounters
from folkmoot.protocol.errors import InvalidRequest, Overloaded
from folkmoot.protocol.histogram import BOUNDS
from folkmoot.protocol.messages import HelloRequest


def test_a_request_is_counted_with_its_bytes_and_the_time_until_it_was_answered_or_refused() -> (
    None
):
    counters = RequestCounters()
    body = HelloRequest("test")
    for _ in range(2):
        counters.count_request(body, [memoryview(b"12345"), memoryview(b"678")])
    counters.count_response(Request(b"peer", 1, body, 100.0), [b"12", b"3"], 100.2)
    counters.count_error(Request(b"peer", 2, body, 100.0), Overloaded("too many"), 103.0)
    ((name, hello),) = counters.snapshot().items()
    assert (name, hello.received, hello.request_bytes, hello.response_bytes) == ("hello", 2, 16, 3)
    assert hello.durations.total == pytest.approx(3.2)
    counted = {BOUNDS[place]: count for place, count in enumerate(hello.durations.counts) if count}
    assert counted == {0.25: 1, 5.0: 1}


def test_what_cannot_be_read_is_counted_as_an_error_of_no_api() -> None:
    counters = RequestCounters()
    counters.count_error(Request(b"peer", 0, None, 100.0), InvalidRequest("no envelope"), 100.0)
    assert counters.errors == {"InvalidRequest": 1}
    assert counters.snapshot() == {}
