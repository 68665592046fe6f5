"""Exceptions inside a poll or an iteration: a signal handler's, a socket's. Nothing unseen is skipped."""

import errno
from collections.abc import Callable
from typing import Any

import pytest
import zmq

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.network import client
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.errors import BrokerUnreachable
from folkmoot.protocol.messages import Api, MetadataRequest
from tests.consumers import fetching
from tests.consumers.fake_cluster import a_batch
from tests.consumers.fetching import ONE, TWO, ZERO
from tests.consumers.parts import Bench, take, until


def once(do: Callable[..., Any], when: Callable[[], bool] = lambda: True) -> Callable[..., Any]:
    """The same function, but its first call (of those where `when` holds) is interrupted."""
    done: list[bool] = []

    def call(*arguments: Any, **options: Any) -> Any:
        if not done and when():
            done.append(True)
            raise KeyboardInterrupt
        return do(*arguments, **options)

    return call


def interrupt_fetch_behind(consumer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the first fetch behind records that have been taken."""
    counters = consumer._core.fetcher.counters
    before = counters.records_taken
    call = once(consumer._core.hand_out._keep_fetching, lambda: counters.records_taken > before)
    monkeypatch.setattr(consumer._core.hand_out, "_keep_fetching", call)


def interrupted(read: Callable[[], object]) -> None:
    """Read until the interruption comes."""

    def try_often() -> None:
        for _ in range(100):
            assert not read()

    with pytest.raises(KeyboardInterrupt):
        try_often()


READ: list[Callable[[Consumer], object]] = [
    lambda consumer: consumer.poll(0.2),
    lambda consumer: consumer.poll_batch(0.2),
    lambda consumer: next(iter(consumer)),
]


@pytest.mark.parametrize("read", READ, ids=["poll", "batch", "iteration"])
def test_an_interrupted_read_hands_everything_out_the_next_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, read: Callable[[Consumer], object]
) -> None:
    bench.send(range(10))
    with bench.reader() as consumer:
        assert take(consumer, 2) == [0, 1]
        interrupt_fetch_behind(consumer, monkeypatch)
        interrupted(lambda: read(consumer))
        assert take(consumer, 8) == list(range(2, 10))


@pytest.mark.parametrize("read", READ, ids=["poll", "batch", "iteration"])
def test_closing_after_an_interrupted_read_commits_nothing_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, read: Callable[[Consumer], object]
) -> None:
    bench.send(range(10))
    with bench.member() as consumer:
        assert take(consumer, 2) == [0, 1]
        interrupt_fetch_behind(consumer, monkeypatch)
        interrupted(lambda: read(consumer))
    assert bench.committed() == 2


def test_an_iteration_that_ends_before_its_first_record_skips_nothing(bench: Bench) -> None:
    bench.send(range(10))
    with bench.reader() as consumer:
        own: Any = consumer._core
        next_cursor = own.next_cursor

        def interrupted_with_a_cursor() -> Any:
            if (yield from next_cursor()) is not None:
                raise KeyboardInterrupt

        own.next_cursor = interrupted_with_a_cursor
        with pytest.raises(KeyboardInterrupt):
            next(iter(consumer))
        own.next_cursor = next_cursor
        assert take(consumer, 10) == list(range(10))
        until(consumer, lambda: consumer.position(bench.partition(0)) == 10)


def test_a_batch_whose_opening_is_interrupted_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = fetching.Bench()
    bench.reading()
    bench.fetched(a_batch(0, b"a") + a_batch(1, b"b"))
    monkeypatch.setattr(record_batch, "columns_of", once(record_batch.columns_of))
    with pytest.raises(KeyboardInterrupt):
        bench.values()
    assert [bench.values(), bench.values()] == [[b"a"], [b"b"]]


def test_a_view_whose_opening_is_interrupted_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = fetching.Bench()
    bench.reading()
    bench.fetched(a_batch(0, b"a"))
    monkeypatch.setattr(record_batch, "columns_of", once(record_batch.columns_of))
    with pytest.raises(KeyboardInterrupt):
        bench.fetcher.take_view(10)
    view = bench.fetcher.take_view(10)
    assert view is not None
    assert list(view.values) == [b"a"]


@pytest.mark.parametrize("during", ["asking", "waiting", "taking"])
def test_what_was_under_way_during_an_interruption_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    bench = fetching.Bench()
    cluster: Any = bench.cluster
    bench.reading(ZERO, ONE, TWO)
    cluster.answer_some(cluster.next(), {ONE: a_batch(0, b"a")}, has_session=True)
    take_replies = cluster.poll

    def lose_replies(*arguments: Any) -> None:
        take_replies(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if during == "asking":
            bench.poll()
            patch.setattr(cluster, "send", once(cluster.send))
        elif during == "waiting":
            patch.setattr(cluster, "poll", lose_replies)
        else:
            patch.setattr(batch_header, "split", once(batch_header.split))
        with pytest.raises(KeyboardInterrupt):
            bench.poll()
    bench.poll()
    asked = cluster.asked[-1]
    assert asked.request.after is None
    assert sorted(asked.partitions) == [ZERO, ONE, TWO]


def test_a_process_without_descriptors_cannot_reach_a_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_many(*_: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    monkeypatch.setattr(client, "Connection", too_many)
    with client.Connections("client") as connections:
        connections.send("127.0.0.1:1", Api.METADATA, MetadataRequest([]), timeout=5.0)
        (reply,) = connections.poll(1.0)
        assert isinstance(reply.error, BrokerUnreachable)
        assert "Too many open files" in str(reply.error)
        connections.send("127.0.0.1:1", Api.METADATA, MetadataRequest([]), timeout=5.0)
        (reply,) = connections.poll(3.0)
        assert isinstance(reply.error, BrokerUnreachable)
