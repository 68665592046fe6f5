"""How throughput changes with the number of partitions, the size of records, and the number of consumers."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.clients.program import write_columns
from benchmarks.harness import Context, Estimate, Sample, cell, rate_of
from benchmarks.peers.kafka import KafkaServer
from benchmarks.results import Chart, Results, Series

NAME: Final = "growth"
TITLE: Final = "Growth: partitions, size of records, consumers"
ESTIMATE: Final = Estimate(seconds=300, per_round=0, quick_seconds=120, disk=3e9)

PARTITIONS: Final = (1, 10, 100, 1_000, 10_000)
KAFKAS_PARTITIONS: Final = 1_000  # creating ten thousand takes it minutes
SIZES: Final = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
MEMBERS: Final = (1, 2, 4, 8)
GROUP_PARTITIONS: Final = 16
WARM: Final = 20_000
NAMES: Final = {"folkmoot": "Folkmoot", "kafka": "Kafka (confluent-kafka)"}
EXPECTED: Final = 600_000
LEAST_SHARE: Final = 0.2
MOST_BYTES: Final = 250_000_000
_KAFKA: Final = {"message.max.bytes": 1_100_000}


class WrongCount(Exception):
    """Records are missing, or there are more than were sent."""


def run(context: Context) -> Results:
    results = Results(name=NAME, title=TITLE)
    peers = [peer for peer in NAMES if context.has(peer)]
    smoke = context.scale.name == "smoke"
    paces: dict[str, float] = {}
    for number in PARTITIONS[:1] if smoke else PARTITIONS:
        there = [each for each in peers if each == "folkmoot" or number <= KAFKAS_PARTITIONS]
        case = f"{number:,} partition{'s' if number > 1 else ''}"
        results.cells += _turns(context, case, there, _with_partitions(context, number, paces))
    for size in SIZES[:1] if smoke else SIZES:
        results.cells += _turns(context, f"{size:,} B", peers, _with_size(context, size))
    count = max(2_000, int(2 * EXPECTED * context.scale.seconds))
    topic_of = _filled(context, count)
    for members in MEMBERS[1:2] if smoke else MEMBERS:
        case = f"{members} consumer{'s' if members > 1 else ''} in a group"
        measure = _with_members(context, members, topic_of, count)
        results.cells += _turns(context, case, peers, measure)
    results.notes.append(
        "Partitions: 100 B, all keys different, send() and iteration. Sizes: 12 partitions; the rate "
        "is of bytes. Consumers: 16 partitions, poll(); from the word to go to the last record, the "
        "group complete before; on two cores."
    )
    results.charts += _charts(results)
    return results


Measured = Mapping[str, Sample]  # "produce" and "consume"


def _turns(
    context: Context, case: str, peers: Sequence[str], measure: Callable[[str], Measured]
) -> Iterator[Any]:
    """A cell for each verb and peer."""
    context.say(f"-- {case}")
    taken: dict[tuple[str, str], list[Sample]] = {}
    rounds = context.scale.spare_rounds
    for peer, _ in context.turns(peers, rounds, warm_up=False):
        found = context.attempt(f"{case}, {NAMES[peer]}", partial(measure, peer)) or {}
        for verb, sample in found.items():
            taken.setdefault((verb, peer), []).append(sample)
            context.say(f"   {verb}, {NAMES[peer]}: {sample.value:,.4g}")
    for (verb, peer), samples in taken.items():
        unit = "MB/s" if case.endswith(" B") else "records/s"
        yield cell(f"{verb}: {case}", NAMES[peer], unit, samples)


def _with_partitions(
    context: Context, number: int, paces: dict[str, float]
) -> Callable[[str], Measured]:
    """`paces` has how fast each peer was with fewer partitions: it gets no more to do than it can."""
    most = max(1_000, int(EXPECTED * context.scale.seconds))
    records = context.records.get("unique", most)

    def measure(peer: str) -> Measured:
        wanted = paces.get(peer, EXPECTED) * context.scale.seconds
        count = int(min(most, max(wanted, most * LEAST_SHARE)))
        found = _once(context, peer, number, records.path, count, "records")
        paces[peer] = found["produce"].value
        return found

    return measure


def _with_size(context: Context, size: int) -> Callable[[str], Measured]:
    count = max(20, min(int(EXPECTED * context.scale.seconds), MOST_BYTES // size))
    path = context.work / "records" / f"size-{size}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_columns(
            path, [b"user-%04d" % (n % 4_000) for n in range(count)], _values(count, size)
        )

    def measure(peer: str) -> Measured:
        found = _once(context, peer, 12, path, count, "records")
        scale = size / 1e6
        return {
            verb: Sample(
                value=sample.value * scale, facts={"records/s": sample.value, **sample.facts}
            )
            for verb, sample in found.items()
        }

    return measure


def _values(count: int, size: int) -> list[bytes]:
    """Random hexadecimal, no two the same; what repeats is two megabytes apart, beyond codecs' windows."""
    noise = os.urandom(1 << 20).hex().encode()
    whole = noise * (size // len(noise) + 2)
    number_width = min(8, size)
    starts = (n * size % len(noise) for n in range(count))
    return [
        (b"%08d" % n)[-number_width:] + whole[start : start + size - number_width]
        for n, start in enumerate(starts)
    ]


def _once(
    context: Context, peer: str, partitions: int, path: Path, count: int, how: str
) -> Measured:
    server = context.server(peer)
    kafka = isinstance(server, KafkaServer)
    topic = context.new_topic(peer, partitions)
    # Each partition is written to before the clock starts: the first batch makes its files.
    warm = min(max(WARM, 5 * partitions), count // 4)
    told: dict[str, Any] = {"topic": topic, "count": count, "warm": warm}
    options: dict[str, Any] = {"options": _KAFKA} if kafka else {}
    producer = server.client(
        "produce", how="send", compression="zstd", records=str(path), **told, **options
    )
    sent = rate_of(producer.run(server.processes()))
    told["warm"] = min(1_000, count // 4)
    reader = server.client("consume", how="consume" if kafka else how, **told)
    read = reader.run(server.processes())
    if read.records != count:
        raise WrongCount(f"{NAMES[peer]}: {count} records sent, {read.records} read")
    server.delete_topic(topic)
    return {"produce": sent, "consume": rate_of(read)}


def _filled(context: Context, count: int) -> Callable[[str], str]:
    """A peer's topic that all groups read, written when it is first asked for."""
    topics: dict[str, str] = {}

    def topic_of(peer: str) -> str:
        if peer not in topics:
            records = context.records.get("unique", count)
            topic = topics[peer] = context.new_topic(peer, GROUP_PARTITIONS)
            told: dict[str, Any] = {"topic": topic, "count": count, "warm": count // 4}
            told |= {"how": "send", "compression": "zstd", "records": str(records.path)}
            context.server(peer).client("produce", **told).run({})
        return topics[peer]

    return topic_of


def _with_members(
    context: Context, members: int, topic_of: Callable[[str], str], count: int
) -> Callable[[str], Measured]:
    def measure(peer: str) -> Measured:
        read = _group(context, peer, topic_of(peer), members)
        if sum(each["records"] for each in read) != count:
            raise WrongCount(f"{NAMES[peer]}: {count} records sent, {read} read")
        seconds = max(each["ended"] for each in read) - min(each["begun"] for each in read)
        cpu = sum(each["cpu"] for each in read) / count * 1e6
        return {"consume": Sample(value=count / seconds, facts={"client CPU": cpu})}

    return measure


def _group(context: Context, peer: str, topic: str, members: int) -> list[dict[str, Any]]:
    """What each member tells when all of them have read to the end."""
    server = context.server(peer)
    module = f"benchmarks.clients.{peer}_group"
    told: dict[str, Any] = {
        "topic": topic,
        "group": f"group-{time.monotonic_ns()}",
        "share": GROUP_PARTITIONS // members,
    }
    with ExitStack() as stack:
        programs = [
            stack.enter_context(server.client("consume", module=module, **told))
            for _ in range(members)
        ]
        for program in programs:
            program.wait_ready()
        for program in programs:
            program.go()
        return [program.wait_done() for program in programs]


def _charts(results: Results) -> Iterator[Chart]:
    lines = (
        (
            "partitions",
            "Throughput and partitions",
            "partitions",
            "partitions",
            "million records/s",
        ),
        ("size", "Throughput and size of records", " B", "bytes of a record", "MB/s"),
        ("consumers", "Throughput and consumers", "consumers", "consumers in a group", ""),
    )
    for name, title, mark, x_title, unit in lines:
        series: dict[str, list[tuple[float, float]]] = {}
        for each in results.cells:
            verb, _, what = each.case.partition(": ")
            if mark.rstrip("s") not in what or (mark == " B") != what.endswith(" B"):
                continue
            x = float(what.split()[0].replace(",", ""))
            y = each.median if mark == " B" else each.median / 1e6
            series.setdefault(f"{each.contender}, {verb}", []).append((x, y))
        yield Chart(
            name=f"growth-{name}",
            title=title,
            kind="lines",
            unit=unit or "million records/s",
            series=[Series(name=who, points=points) for who, points in series.items()],
            x_title=x_title,
            log_x=True,
        )
