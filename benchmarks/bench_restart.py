"""How soon a broker answers again, and what it holds in memory: a large log, 10,000 partitions, full load.

The time runs from the start of the process (Python and its imports included) until a fetch was
answered with records. What is written beforehand is written by the broker's own storage, in this
process: the log of a broker that was fed for minutes, in seconds.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

from benchmarks.harness import Context, Sample, settle
from benchmarks.measuring import Usage, memory
from benchmarks.peers.folkmoot import FolkmootServer
from benchmarks.programs import all_ready, go_together
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.coordination import partition_states, topics
from folkmoot.coordination.partition_states import TopicIdPartition
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.network.client import Connections
from folkmoot.protocol import record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.messages import Api, FetchEntry, FetchRequest

TITLE: Final = "Restart and memory of a broker"

LOG_BYTES: Final = {"full": 10_000_000_000, "quick": 1_000_000_000, "smoke": 20_000_000}
ROOM: Final = 2.5
"""How many times the log's bytes must be free: a disk that this fills hurts all that use it."""
PARTITIONS: Final = {"full": 10_000, "quick": 2_000, "smoke": 100}
WRITE_BYTES: Final = 8_000_000
TOPIC: Final = "kept"
FETCH_BYTES: Final = 1_000_000
PATIENCE: Final = 60.0
CALM_TIME: Final = 2.0


def run(context: Context) -> None:
    context.attempt("a large log", partial(_large_log, context))
    context.attempt("many partitions", partial(_many_partitions, context))
    context.attempt("full load", partial(_full_load, context))


# -- a large log --------------------------------------------------------------------------------------


def _large_log(context: Context) -> None:
    size = _size_that_fits(context)
    case = f"a log of {size / 1e9:.3g} GB, to the first fetch answered"
    context.print_status(f"-- {case}")
    with _prepare_server(context, "log", 12) as (server, topic_id):
        with LogManager(server.data, 1, LogConfig()) as logs:
            _fill(logs, 12, size)
        settle()
        clean, killed = [], []
        for _ in range(context.scale.rounds):
            clean.append(_start_and_fetch(context, server, topic_id, "after an orderly stop"))
            _feed(context, server)
            server.cluster.brokers[0].kill()
            killed.append(_start_and_fetch(context, server, topic_id, "after kill -9 under load"))
            server.cluster.brokers[0].stop()
    for name, samples, wanted in (("orderly stop", clean, 1.0), ("kill -9", killed, 3.0)):
        found = context.add(case, f"after {name}", "s", samples, "lower")
        context.results.judge(f"{case}, after {name}", found, wanted=wanted)


def _size_that_fits(context: Context) -> int:
    """Of the log, in whole GB where the disk has not enough room for what is wanted."""
    room = shutil.disk_usage(context.work).free / ROOM
    return min(LOG_BYTES[context.scale.name], max(1, int(room / 1e9)) * 10**9)


@contextmanager
def _prepare_server(
    context: Context, name: str, partitions: int
) -> Iterator[tuple[FolkmootServer, str]]:
    """A server of its own with a topic, its broker stopped after it has led all of its partitions."""
    with FolkmootServer(context.work / f"folkmoot-{name}") as server:
        server.create_topic(TOPIC, partitions)
        with server.connected() as session:
            topic = execute(session, topics.read(TOPIC))
            assert topic is not None
            _wait_until_led(session, topic.topic_id, partitions)
        server.cluster.brokers[0].stop()
        yield server, topic.topic_id
    shutil.rmtree(server.directory)


def _wait_until_led(session: Session, topic_id: str, partitions: int) -> None:
    """Until the broker has begun to lead each partition, and so has noted its leader epoch on its disk.

    A log with records but without a noted epoch is one whose disk has lost something.
    """
    waiting = [TopicIdPartition(topic_id, number) for number in range(partitions)]
    deadline = time.monotonic() + PATIENCE
    while waiting:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(waiting)} partitions have no leader after {PATIENCE:g} s")
        time.sleep(0.2)
        found = execute_all(session, map(partition_states.read, waiting))
        states = zip(waiting, found, strict=True)
        waiting = [each for each, known in states if known is None or not known.state.active]


def _fill(logs: LogManager, partitions: int, size: int) -> None:
    """So many bytes in all, in batches of a megabyte or less, in turn, in the leader epoch of each log."""
    each = size // partitions
    batch = _batch(min(1_000_000, each))
    batches = [batch] * max(1, min(WRITE_BYTES, each) // len(batch))
    for log in logs:
        while log.size < each:
            log.append_as_leader(batches, time.time_ns() // 1_000_000, log.leader_epoch)


def _batch(size: int) -> bytes:
    values = [os.urandom(50).hex().encode() for _ in range(max(1, size // 100))]
    return record_batch.encode(Columns(len(values), None, values, time.time_ns() // 1_000_000))


def _start_and_fetch(context: Context, server: FolkmootServer, topic_id: str, label: str) -> Sample:
    """Start the broker and fetch, from the first partition's beginning."""
    started_at = time.monotonic()
    server.start()
    registered = time.monotonic() - started_at
    _fetch(server.cluster.brokers[0].address, topic_id)
    took = time.monotonic() - started_at
    anonymous = memory(server.processes()["broker"]).anonymous
    context.print_status(f"   {label}: {took:.2f} s")
    return Sample(value=took, facts={"registered s": registered, "broker RssAnon": anonymous})


def _fetch(address: str, topic_id: str) -> None:
    entry = FetchEntry(TOPIC, topic_id, 0, -1, 0, FETCH_BYTES)
    deadline = time.monotonic() + PATIENCE
    with Connections("benchmark") as connections:
        while time.monotonic() < deadline:
            connections.send(address, Api.FETCH, FetchRequest(0.0, 1, FETCH_BYTES, [entry]))
            for reply in connections.poll(PATIENCE):
                if reply.error is None and any(map(len, reply.payloads)):
                    return
    raise TimeoutError(f"no records were fetched from {address} within {PATIENCE:g} s")


def _feed(context: Context, server: FolkmootServer) -> None:
    """Have a producer write for some seconds, so that a kill leaves something to be checked."""
    count = max(2_000, int(1_000_000 * context.scale.seconds))
    records = context.records.get("small", count)
    server.produce(TOPIC, records.path, count, how="columns", compression="none", warm=1_000)


# -- many partitions ----------------------------------------------------------------------------------


def _many_partitions(context: Context) -> None:
    count = PARTITIONS[context.scale.name]
    case = f"{count:,} partitions, to the first fetch answered"
    context.print_status(f"-- {case}")
    with _prepare_server(context, "partitions", count) as (server, topic_id):
        with _without_fsync(), LogManager(server.data, 1, LogConfig()) as logs:
            _fill(logs, count, count * 10_000)
        settle()
        idle = 0
        for stop_kind in ("orderly stop", "kill -9"):
            sample = _start_and_fetch(context, server, topic_id, f"after {stop_kind}")
            context.add(case, f"after {stop_kind}", "s", [sample])
            time.sleep(CALM_TIME)
            idle = memory(server.processes()["broker"]).anonymous
            server.cluster.brokers[0].kill()
        context.print_status(f"   idle: {idle / 1e6:.0f} MB of its own")
    text = f"memory of a broker with {count:,} idle partitions (RssAnon)"
    context.results.limit(text, idle, 250e6, "bytes")


@contextmanager
def _without_fsync() -> Iterator[None]:
    """To prepare a directory, which `sync` then has written: some fsyncs a partition take a minute."""
    with mock.patch.object(os, "fsync"):
        yield


# -- full load ----------------------------------------------------------------------------------------


def _full_load(context: Context) -> None:
    """Two producers and a consumer at once, as fast as they can."""
    case = "two producers and a consumer at full speed"
    context.print_status(f"-- {case}")
    server = context.server("folkmoot")
    topic = context.new_topic("folkmoot", 12)
    count = max(4_000, int(2_000_000 * context.scale.seconds))
    records: Path = context.records.get("small", count).path
    parameters: dict[str, Any] = {"topic": topic, "count": count, "warm": 1_000}
    parameters |= {"compression": "none", "records": str(records)}
    producers = [server.client("produce", how=how, **parameters) for how in ("send", "columns")]
    reading = {**parameters, "count": 2 * count, "warm": 1}
    consumer = server.client("consume", how="columns", **reading)
    # What the producers send to warm up is there when the consumer is started.
    with (
        all_ready(producers),
        all_ready([consumer]),
        Usage(server.processes()) as usage,
    ):
        reports = go_together([*producers, consumer])
    server.delete_topic(topic)
    seconds = max(each["seconds"] for each in reports)
    peak, millions = usage.peaks["broker"], 4 * count / 1e6
    facts = {
        "client CPU": sum(each["cpu"] for each in reports) / millions,
        "server CPU": sum(usage.cpu.values()) / millions,
        "broker RssAnon": peak.anonymous,
        "broker RSS": peak.resident,
    }
    sample = Sample(value=4 * count / seconds, facts=facts)
    context.print_status(
        f"   {sample.value:,.0f} records/s in and out, {peak.anonymous / 1e6:.0f} MB"
    )
    context.add(case, "in and out", "records/s", [sample])
    text = "memory of a broker under full load (RssAnon)"
    context.results.limit(text, peak.anonymous, 150e6, "bytes", facts)
