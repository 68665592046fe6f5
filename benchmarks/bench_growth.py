"""How throughput changes with the number of partitions, the size of records, and the number of consumers."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from benchmarks.clients.program import write_columns
from benchmarks.harness import Context, Part, Sample, WrongCount, rate_of
from benchmarks.programs import Outcome, all_ready, go_together
from benchmarks.results import Chart, Results, Series

TITLE: Final = "Growth: partitions, size of records, consumers"

PARTITIONS: Final = (1, 10, 100, 1_000, 10_000)
KAFKAS_PARTITIONS: Final = 1_000  # creating ten thousand takes it minutes
SIZES: Final = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
MEMBERS: Final = (1, 2, 4, 8)
GROUP_PARTITIONS: Final = 16
WARM: Final = 20_000
NAMES: Final = {"folkmoot": "Folkmoot", "kafka": "Kafka (confluent-kafka)"}
EXPECTED: Final = 600_000
MOST_BYTES: Final = 250_000_000
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "folkmoot": {},
    "kafka": {"message.max.bytes": 1_100_000},
}


Measure = Callable[[str], Mapping[Part, Sample]]
"""Of a peer; its samples belong to cases of two verbs."""


def run(context: Context) -> None:
    results = context.results
    smoke = context.scale.name == "smoke"
    for number in PARTITIONS[:1] if smoke else PARTITIONS:
        case = f"{number:,} partition{'s' if number > 1 else ''}"
        peers = list(NAMES) if number <= KAFKAS_PARTITIONS else ["folkmoot"]
        _compare(context, case, _with_partitions(context, case, number), peers)
    for size in SIZES[:1] if smoke else SIZES:
        case = f"{size:,} B"
        _compare(context, case, _with_size(context, case, size))
    count = max(2_000, int(2 * EXPECTED * context.scale.seconds))
    topic_of = cache(partial(_fill_topic, context, count))
    for members in MEMBERS[1:2] if smoke else MEMBERS:
        case = f"{members} consumer{'s' if members > 1 else ''} in a group"
        measure = partial(_with_members, context, case, members, topic_of, count)
        _compare(context, case, measure)
    results.notes.append(
        "Partitions: 100 B, all keys different, send() and iteration. Sizes: 12 partitions; the rate "
        "is of bytes. Consumers: 16 partitions, poll(); from the word to go to the last record, the "
        "group complete before; on two cores."
    )
    results.charts += [
        _chart(results, "partitions", "Throughput and partitions", "partitions"),
        _chart(results, "size", "Throughput and size of records", "bytes of a record"),
        _chart(results, "consumers", "Throughput and consumers", "consumers in a group"),
    ]


def _compare(
    context: Context,
    case: str,
    measure: Measure,
    peers: Sequence[str] = tuple(NAMES),
) -> None:
    contenders = {NAMES[peer]: partial(measure, peer) for peer in peers if context.has(peer)}
    samples_by_part = context.compare(case, contenders, context.scale.spare_rounds, warm_up=False)
    unit = "MB/s" if case.endswith(" B") else "records/s"
    for part, samples in samples_by_part.items():
        context.add(*part, unit, samples)


def _with_partitions(context: Context, case: str, number: int) -> Measure:
    count = max(1_000, int(EXPECTED * context.scale.seconds))
    records = context.records.get("unique", count)

    def measure(peer: str) -> Mapping[Part, Sample]:
        sent, read = _once(context, peer, number, records.path, count)
        return {
            (f"produce: {case}", NAMES[peer]): rate_of(sent),
            (f"consume: {case}", NAMES[peer]): rate_of(read),
        }

    return measure


def _with_size(context: Context, case: str, size: int) -> Measure:
    count = max(20, min(int(EXPECTED * context.scale.seconds), MOST_BYTES // size))
    path = context.work / "records" / f"size-{size}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        keys = [b"user-%04d" % (n % 4_000) for n in range(count)]
        write_columns(path, keys, _values(count, size))

    def measure(peer: str) -> Mapping[Part, Sample]:
        sent, read = _once(context, peer, 12, path, count)
        return {
            (f"{verb}: {case}", NAMES[peer]): Sample(
                value=each.rate * size / 1e6, facts={"records/s": each.rate, **each.facts}
            )
            for verb, each in (("produce", sent), ("consume", read))
        }

    return measure


def _values(count: int, size: int) -> list[bytes]:
    """Random hexadecimal, no two the same; what repeats is two megabytes apart, beyond codecs' windows."""
    noise = os.urandom(1 << 20).hex().encode()
    repeated_noise = noise * (size // len(noise) + 2)
    number_width = min(8, size)
    starts = (n * size % len(noise) for n in range(count))
    return [
        (b"%08d" % n)[-number_width:] + repeated_noise[start : start + size - number_width]
        for n, start in enumerate(starts)
    ]


def _once(
    context: Context, peer: str, partitions: int, path: Path, count: int
) -> tuple[Outcome, Outcome]:
    server = context.server(peer)
    topic = context.new_topic(peer, partitions)
    # Each partition is written to before the clock starts: the first batch makes its files.
    warm = min(max(WARM, 5 * partitions), count // 4)
    how = {"folkmoot": "records", "kafka": "consume"}[peer]
    sent = server.produce(topic, path, count, how="send", warm=warm, options=OPTIONS[peer])
    read = server.consume(topic, count, how, min(1_000, count // 4))
    if read.records != count:
        raise WrongCount(f"{NAMES[peer]}: {count} records sent, {read.records} read")
    server.delete_topic(topic)
    return sent, read


def _fill_topic(context: Context, count: int, peer: str) -> str:
    """A peer's topic that all groups read."""
    records = context.records.get("unique", count)
    topic = context.new_topic(peer, GROUP_PARTITIONS)
    context.server(peer).produce(topic, records.path, count, how="send", warm=count // 4)
    return topic


def _with_members(
    context: Context, case: str, members: int, topic_of: Callable[[str], str], count: int, peer: str
) -> Mapping[Part, Sample]:
    server = context.server(peer)
    parameters: dict[str, Any] = {
        "topic": topic_of(peer),
        "group": f"group-{time.monotonic_ns()}",
        "share": GROUP_PARTITIONS // members,
    }
    with all_ready(
        server.client("read", program="members", **parameters) for _ in range(members)
    ) as programs:
        read = go_together(programs)
    if sum(each["records"] for each in read) != count:
        raise WrongCount(f"{NAMES[peer]}: {count} records sent, {read} read")
    seconds = max(each["ended"] for each in read) - min(each["begun"] for each in read)
    cpu = sum(each["cpu"] for each in read) / count * 1e6
    return {
        (f"consume: {case}", NAMES[peer]): Sample(value=count / seconds, facts={"client CPU": cpu})
    }


def _chart(results: Results, name: str, title: str, x_title: str) -> Chart:
    """A line for each peer and verb; what the cases begin with is their place."""
    mark = {"partitions": "partition", "size": " B", "consumers": "consumer"}[name]
    is_size = name == "size"
    series: dict[str, list[tuple[float, float]]] = {}
    for each in results.cells:
        verb, _, case = each.case.partition(": ")
        if mark in case:
            x = float(case.split()[0].replace(",", ""))
            y = each.median if is_size else each.median / 1e6
            series.setdefault(f"{each.contender}, {verb}", []).append((x, y))
    return Chart(
        name=f"growth-{name}",
        title=title,
        kind="lines",
        unit="MB/s" if is_size else "million records/s",
        series=[Series(name=contender, points=points) for contender, points in series.items()],
        x_title=x_title,
        log_x=True,
    )
