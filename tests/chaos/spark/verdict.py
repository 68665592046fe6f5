"""What must hold of a run: from what was noted, ZooKeeper's transactions, and what lies in the topic."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from folkmoot.protocol.records import Record, TopicPartition
from tests.chaos.checks import CLOCK
from tests.chaos.history import Life
from tests.chaos.spark.faults import Fault


@dataclass(frozen=True, slots=True)
class Output:
    """Records that somebody put out, from offset `first` to `last`.

    `since` is when that was begun: Spark wrote the batch down, or the member claimed the partition.
    """

    at: float
    place: TopicPartition
    who: str
    batch: int
    """The epoch, where a member put it out."""
    first: int
    last: int
    since: float
    is_spark: bool


def lost(offsets: Sequence[int], outputs: Sequence[Output]) -> int:
    """How many records nobody put out."""
    seen: set[int] = set()
    for each in outputs:
        seen.update(range(each.first, each.last + 1))
    return len(set(offsets) - seen)


def committed_too_early(offsets: Sequence[int], outputs: Sequence[Output], life: Life) -> list[str]:
    """Commits of offsets below which something had not been put out by then."""
    at: dict[int, float] = {}
    for each in sorted(outputs, key=lambda output: output.at):
        for offset in range(each.first, each.last + 1):
            at.setdefault(offset, each.at)
    latest = list(accumulate((at.get(offset, inf) for offset in offsets), max))
    found = []
    for commit in life.commits:
        below = bisect_left(offsets, commit.offset)
        if below and latest[below - 1] > commit.at + CLOCK:
            when = latest[below - 1]
            found.append(f"{commit.offset} was committed at {commit.at:.3f}, put out at {when:.3f}")
    return found


def again(
    outputs: Sequence[Output], life: Life, faults: Sequence[Fault]
) -> Iterator[tuple[int, str]]:
    """How many records came twice, each time; with words if nothing explains it."""
    earlier: list[Output] = []
    for each in sorted(outputs, key=lambda output: output.at):
        for one in earlier:
            first, last = max(one.first, each.first), min(one.last, each.last)
            if first <= last:
                why = _explained(one, each, first, life, faults)
                yield last - first + 1, "" if why else f"{first} to {last}: {one}, and again {each}"
        earlier.append(each)


def _explained(one: Output, other: Output, first: int, life: Life, faults: Sequence[Fault]) -> bool:
    """The group was reset to there; or one of the two was in a batch at a fault, and nobody had committed
    it when the other one was begun."""
    if any(reset.offset <= first and one.since <= reset.at <= other.at for reset in life.resets):
        return True
    # A member that stood still between its poll and its output was in a batch, too.
    if _hit(other.who, other.since if other.is_spark else one.at, other.at, faults):
        return True
    is_open = _committed(life, other.since) <= first
    return is_open and _hit(one.who, one.since if one.is_spark else one.at, other.at, faults)


def _hit(who: str, since: float, until: float, faults: Sequence[Fault]) -> bool:
    return any(
        fault.whom in (who, "*") and fault.begun <= until and since <= fault.ended
        for fault in faults
    )


def _committed(life: Life, at: float) -> int:
    known = [each for each in (*life.commits, *life.resets) if each.at <= at - CLOCK]
    return max(known, key=lambda each: each.at).offset if known else 0


def sink(records: Sequence[Record], batches: int, rows: int) -> list[str]:
    """The topic has each row of the batches that Spark has committed, those of another one, nothing twice."""
    values = Counter(int(record.value or b"-1") for record in records)
    twice = sorted(value for value, times in values.items() if times > 1)
    missing = sorted(set(range(batches * rows)) - values.keys())
    strange = sorted(values.keys() - set(range((batches + 1) * rows)))
    return [
        f"{len(some)} rows are {what}: {some[:5]}"
        for what, some in (
            ("in the sink's topic twice", twice),
            ("missing in the sink's topic", missing),
            ("in the sink's topic that nobody wrote", strange),
        )
        if some
    ]


def by_place(outputs: Sequence[Output]) -> dict[TopicPartition, list[Output]]:
    found: dict[TopicPartition, list[Output]] = defaultdict(list)
    for each in outputs:
        found[each.place].append(each)
    return found
