"""The sender of records at a rate, and what is told of their way."""

import time

from benchmarks.clients.pacing import DUE, Arrivals, records, send_paced


def test_each_record_carries_when_it_is_due() -> None:
    keys, values = records(5, 1_000.0, 20)
    assert [DUE.unpack_from(value)[0] for value in values] == [
        0,
        10**6,
        2 * 10**6,
        3 * 10**6,
        4 * 10**6,
    ]
    assert {len(value) for value in values} == {20}
    assert len(keys) == 5


def test_a_stall_delays_no_later_record_beyond_its_own_time() -> None:
    keys, values = records(100, 10_000.0, 8)
    sent: list[int] = []

    def send(value: bytes, key: bytes) -> None:
        if not sent:
            time.sleep(0.02)  # twice as long as all of it
        sent.append(DUE.unpack(value)[0])

    begun = send_paced(send, keys, values, 10_000.0)
    ended = time.monotonic_ns()
    assert sent == [number * 100_000 for number in range(100)]
    assert begun < ended - 20_000_000


def test_percentiles_leave_out_the_warm_up_and_take_the_start_off_later() -> None:
    arrivals = Arrivals(200)
    for lag in (*[10**9] * 100, *range(1, 101)):
        assert not arrivals.is_complete
        arrivals.add(lag)
    assert arrivals.is_complete
    found = arrivals.percentiles(100)
    assert (found["p50"], found["p99"], found["max"]) == (50, 99, 100)
