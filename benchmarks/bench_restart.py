"""How soon a broker answers again, and what it holds in memory: a large log, 10,000 partitions, full load.

The time runs from the start of the process (Python and its imports included) until a fetch was
answered with records. What is written beforehand is written by the broker's own storage, in this
process: the log of a broker that was fed for minutes, in seconds.
"""

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

from benchmarks.harness import Context, Estimate, Sample, cell, settle
from benchmarks.measuring import Usage, memory
from benchmarks.peers.folkmoot import FolkmootServer
from benchmarks.results import Results, Target, compared
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.coordination import partition_states, topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.partition_states import TopicIdPartition
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.coordination.zookeeper.execute import execute as carry_out
from folkmoot.coordination.zookeeper.execute import execute_all
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.network.client import Connections
from folkmoot.protocol import record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.messages import Api, FetchEntry, FetchRequest

NAME: Final = "restart"
TITLE: Final = "Restart and memory of a broker"
ESTIMATE: Final = Estimate(seconds=100, per_round=15, quick_seconds=40, disk=12e9)

LOG_BYTES: Final = {"full": 10_000_000_000, "quick": 1_000_000_000, "smoke": 20_000_000}
SMALLER_BYTES: Final = 4_000_000_000
"""Of the log where there is little space."""
ROOM: Final = 2.5
"""So many times the log must be free: a disk that this fills hurts everybody who uses it."""
PARTITIONS: Final = {"full": 10_000, "quick": 2_000, "smoke": 100}
WRITE_BYTES: Final = 8_000_000
TOPIC: Final = "kept"
FETCH_BYTES: Final = 1_000_000
PATIENCE: Final = 60.0
REST: Final = 2.0


class NoSpace(Exception):
    """The disk is too full for even the smaller log."""


def run(context: Context) -> Results:
    results = Results(name=NAME, title=TITLE)
    context.attempt("a large log", partial(_large_log, context, results))
    context.attempt("many partitions", partial(_many_partitions, context, results))
    context.attempt("full load", partial(_full_load, context, results))
    return results


# -- a large log --------------------------------------------------------------------------------------


def _large_log(context: Context, results: Results) -> None:
    size = _size_that_fits(context, results)
    case = f"a log of {size / 1e9:.3g} GB, to the first fetch answered"
    context.say(f"-- {case}")
    with _prepared(context, "log", 12) as (server, topic_id):
        with LogManager(server.data, 1, LogConfig()) as logs:
            _fill(logs, 12, size)
        settle()
        clean, killed = [], []
        for _ in range(context.scale.rounds):
            clean.append(_started(context, server, topic_id, "after an orderly stop"))
            _feed(context, server)
            server.kill()
            killed.append(_started(context, server, topic_id, "after kill -9 under load"))
            server.cluster.brokers[0].stop()
    for name, samples, wanted in (("orderly stop", clean, 1.0), ("kill -9", killed, 3.0)):
        found = cell(case, f"after {name}", "s", samples)
        results.cells.append(found)
        text = f"{case}, after {name}"
        results.targets.append(compared(text, found, wanted=wanted, better="lower"))


def _size_that_fits(context: Context, results: Results) -> int:
    """Of the log: what is wanted, or less, which is said. Raises NoSpace."""
    wanted = LOG_BYTES[context.scale.name]
    free = shutil.disk_usage(context.work).free
    for size in (wanted, min(wanted, SMALLER_BYTES)):
        if free >= ROOM * size:
            break
    else:
        raise NoSpace(
            f"a log of {size / 1e9:.3g} GB wants {ROOM * size / 1e9:.3g} GB of free disk in "
            f"{context.work.parent}, where {free / 1e9:.3g} GB are free: free some, then run "
            f"`python -m benchmarks {NAME}`"
        )
    if size < wanted:
        note = (
            f"The log has {size / 1e9:.3g} GB and not {wanted / 1e9:.3g}: for those "
            f"{ROOM * wanted / 1e9:.3g} GB of disk should be free, and {free / 1e9:.3g} were."
        )
        results.notes.append(note)
        context.say(note)
    return size


@contextmanager
def _prepared(context: Context, name: str, partitions: int) -> Iterator[tuple[FolkmootServer, str]]:
    """A server of its own with a topic, its broker stopped after it has led all of its partitions."""
    server = context.fresh_server("folkmoot", name)
    assert isinstance(server, FolkmootServer)
    with server:
        server.create_topic(TOPIC, partitions)
        session = connect(server.address, session_timeout=10.0)
        try:
            topic = carry_out(session, topics.read(TOPIC))
            assert topic is not None
            _wait_until_led(session, topic.topic_id, partitions)
        finally:
            session.close()
        server.cluster.brokers[0].stop()
        yield server, topic.topic_id
    shutil.rmtree(server.directory)


def _wait_until_led(session: Session, topic_id: str, partitions: int) -> None:
    """Until the broker has begun to lead each partition, and so has noted its leader epoch on its disk.

    A log with records but without a noted epoch is one whose disk has lost something.
    """
    left = [TopicIdPartition(topic_id, number) for number in range(partitions)]
    deadline = time.monotonic() + PATIENCE
    while left:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(left)} partitions have no leader after {PATIENCE:g} s")
        time.sleep(0.2)
        found = execute_all(session, map(partition_states.read, left))
        states = zip(left, found, strict=True)
        left = [each for each, known in states if known is None or not known.state.active]


def _fill(logs: LogManager, partitions: int, size: int) -> None:
    """So many bytes in all, in batches of a megabyte or less, in turn, in the leader epoch of each log."""
    each = size // partitions
    one = _batch(min(1_000_000, each))
    batches = [one] * max(1, min(WRITE_BYTES, each) // len(one))
    for log in logs:
        while log.size < each:
            log.append_as_leader(batches, time.time_ns() // 1_000_000, log.leader_epoch)


def _batch(size: int) -> bytes:
    values = [os.urandom(50).hex().encode() for _ in range(max(1, size // 100))]
    return record_batch.encode(Columns(len(values), None, values, time.time_ns() // 1_000_000))


def _started(context: Context, server: FolkmootServer, topic_id: str, what: str) -> Sample:
    """Start the broker and fetch, from the first partition's beginning."""
    begun = time.monotonic()
    server.start()
    registered = time.monotonic() - begun
    _fetch(server.cluster.brokers[0].address, topic_id)
    took = time.monotonic() - begun
    anonymous = memory(server.processes()["broker"]).anonymous
    context.say(f"   {what}: {took:.2f} s")
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
    told: dict[str, Any] = {"topic": TOPIC, "count": count, "warm": 1_000}
    told["records"] = str(records.path)
    server.client("produce", how="columns", compression="none", **told).run(server.processes())


# -- many partitions ----------------------------------------------------------------------------------


def _many_partitions(context: Context, results: Results) -> None:
    count = PARTITIONS[context.scale.name]
    case = f"{count:,} partitions, to the first fetch answered"
    context.say(f"-- {case}")
    with _prepared(context, "partitions", count) as (server, topic_id):
        with _without_fsync(), LogManager(server.data, 1, LogConfig()) as logs:
            _fill(logs, count, count * 10_000)
        settle()
        idle = 0
        for what in ("orderly stop", "kill -9"):
            sample = _started(context, server, topic_id, f"after {what}")
            results.cells.append(cell(case, f"after {what}", "s", [sample]))
            time.sleep(REST)
            idle = memory(server.processes()["broker"]).anonymous
            server.kill()
        context.say(f"   idle: {idle / 1e6:.0f} MB of its own")
    text = f"memory of a broker with {count:,} idle partitions (RssAnon)"
    _limit(results, text, idle, 250e6)


@contextmanager
def _without_fsync() -> Iterator[None]:
    """To prepare a directory, which `sync` then has written: some fsyncs a partition take a minute."""
    with mock.patch.object(os, "fsync"):
        yield


# -- full load ----------------------------------------------------------------------------------------


def _full_load(context: Context, results: Results) -> None:
    """Two producers and a consumer at once, as fast as they can."""
    case = "two producers and a consumer at full speed"
    context.say(f"-- {case}")
    server = context.server("folkmoot")
    topic = context.new_topic("folkmoot", 12)
    count = max(4_000, int(2_000_000 * context.scale.seconds))
    records: Path = context.records.get("small", count).path
    told: dict[str, Any] = {"topic": topic, "count": count, "warm": 1_000}
    filling: dict[str, Any] = {"compression": "none", "records": str(records)}
    with ExitStack() as stack:
        programs = [
            stack.enter_context(server.client("produce", how=how, **told, **filling))
            for how in ("send", "columns")
        ]
        for program in programs:
            program.wait_ready()
        reading = {**told, "count": 2 * count, "warm": 1}
        consumer = stack.enter_context(server.client("consume", how="columns", **reading))
        consumer.wait_ready()
        programs.append(consumer)
        with Usage(server.processes()) as usage:
            for program in programs:
                program.go()
            told_back = [program.wait_done() for program in programs]
    server.delete_topic(topic)
    seconds = max(each["seconds"] for each in told_back)
    peak, millions = usage.peaks["broker"], 4 * count / 1e6
    facts = {
        "client CPU": sum(each["cpu"] for each in told_back) / millions,
        "server CPU": sum(usage.cpu.values()) / millions,
        "broker RssAnon": peak.anonymous,
        "broker RSS": peak.resident,
    }
    sample = Sample(value=4 * count / seconds, facts=facts)
    context.say(f"   {sample.value:,.0f} records/s in and out, {peak.anonymous / 1e6:.0f} MB")
    results.cells.append(cell(case, "in and out", "records/s", [sample]))
    text = "memory of a broker under full load (RssAnon)"
    _limit(results, text, peak.anonymous, 150e6, facts)


def _limit(
    results: Results,
    text: str,
    figure: float,
    wanted: float,
    facts: Mapping[str, float] | None = None,
) -> None:
    results.targets.append(
        Target(
            text=text,
            figure=figure,
            wanted=wanted,
            unit="bytes",
            better="lower",
            facts=facts or {},
        )
    )
