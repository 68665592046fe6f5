"""What must hold of a whole run, from the members' notes, the sender's and ZooKeeper's transactions."""

from collections import defaultdict
from dataclasses import dataclass

from folkmoot.protocol.records import TopicPartition
from tests.chaos.history import Claimed, History, Life
from tests.chaos.scene import MemberProcess

CLOCK = 0.002  # ZooKeeper notes whole milliseconds


@dataclass(frozen=True, slots=True)
class Processed:
    """A run of records that a member processed."""

    at: float
    epoch: int
    first: int
    last: int
    member: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Something done to a member, or to ZooKeeper: then `member` is empty."""

    begun: float
    ended: float
    member: str = ""


def by_partition(members: list[MemberProcess]) -> dict[TopicPartition, list[Processed]]:
    """All that was processed, in order of time."""
    found: dict[TopicPartition, list[Processed]] = defaultdict(list)
    for member in members:
        for at, place, epoch, first, last in member.reads:
            found[place].append(Processed(at, epoch, first, last, member.name))
    for runs in found.values():
        runs.sort(key=lambda run: run.at)
    return found


def lost(
    processed: dict[TopicPartition, list[Processed]], acknowledged: dict[TopicPartition, list[int]]
) -> list[str]:
    """Every acknowledged record was processed by somebody."""
    missing = []
    for place, offsets in acknowledged.items():
        seen: set[int] = set()
        for run in processed.get(place, ()):
            seen.update(range(run.first, run.last + 1))
        gone = sorted(set(offsets) - seen)
        if gone:
            missing.append(f"{place}: {len(gone)} records lost, from offset {gone[0]}")
    return missing


def committed_too_early(
    processed: dict[TopicPartition, list[Processed]], history: History
) -> list[str]:
    """At every commit, all below its offset had been processed."""
    return [
        breach
        for place, life in history.lives.items()
        for breach in _too_early(place, life, processed.get(place, []))
    ]


def _too_early(place: TopicPartition, life: Life, runs: list[Processed]) -> list[str]:
    found, prefix, taken = [], 0, 0
    apart: list[Processed] = []
    for commit in life.commits:
        while taken < len(runs) and runs[taken].at <= commit.at + CLOCK:
            apart.append(runs[taken])
            taken += 1
        apart.sort(key=lambda run: run.first)
        while apart and apart[0].first <= prefix:
            prefix = max(prefix, apart.pop(0).last + 1)
        if commit.offset > prefix:
            found.append(
                f"{place}: {commit.offset} was committed at {commit.at:.3f} in epoch {commit.epoch}, "
                f"processed up to {prefix}"
            )
    return found


def out_of_epoch(processed: dict[TopicPartition, list[Processed]], history: History) -> list[str]:
    """Each epoch is one member's, begins at what its claim found committed, and leaves nothing out.

    So what is processed twice is what was not committed, and two owners of one epoch there are not.
    """
    found = []
    for place, runs in processed.items():
        claims = {claim.epoch: claim for claim in history.lives[place].claims}
        following: dict[int, int] = {}
        for run in runs:
            claim = claims.get(run.epoch)
            wrong = _wrong(run, claim, following.get(run.epoch))
            following[run.epoch] = run.last + 1
            if wrong:
                found.append(f"{place}: {run.member} in epoch {run.epoch}: {wrong}")
    return found


def _wrong(run: Processed, claim: Claimed | None, following: int | None) -> str:
    if claim is None:
        return "nobody ever claimed that"
    if not claim.member.startswith(f"{run.member}-"):
        return f"that epoch is {claim.member}'s"
    expected = following if following is not None else claim.offset or 0
    return "" if run.first == expected else f"read {run.first} instead of {expected}"


def twice(processed: dict[TopicPartition, list[Processed]]) -> int:
    """How many records were processed again."""
    again = 0
    for runs in processed.values():
        highest = -1
        for run in sorted(runs, key=lambda run: (run.first, run.last)):
            again += max(0, min(run.last, highest) - run.first + 1)
            highest = max(highest, run.last)
    return again


def waits(history: History, faults: list[Fault]) -> list[float]:
    """How long each partition was without owner since the last thing that may put its next one off.

    That is that it lost its owner; that a member died, left or lost its session to whom a plan gave it
    meanwhile; and what was done to ZooKeeper, as long as it lasted. What befalls all other members
    may not put it off.
    """
    found = []
    for gap in history.unowned:
        planned = history.planned_for(gap.partition, gap.since, gap.until)
        chosen = {name.partition("-")[0] for name in planned} | {""}
        since = gap.since
        for fault in faults:
            if fault.begun < gap.until and fault.member in chosen:
                since = max(since, min(fault.ended, gap.until))
        found.append(gap.until - since)
    return found
