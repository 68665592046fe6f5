"""What must hold when everything is consumed; each thing that does not is one line. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from folkmoot.console.demo.direct import Sums
from folkmoot.console.demo.store import Work
from folkmoot.protocol.records import TopicPartition


@dataclass(frozen=True, kw_only=True)
class Consumed:
    """What is there after a pass: by the source, the log, the group and the application's store."""

    flights: int
    expected: Mapping[str, Sums]
    carriers: Mapping[str, Sums]
    ends: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]
    positions: Mapping[TopicPartition, int]
    members: Mapping[str, Work]

    @property
    def repeated(self) -> int:
        """Records that were delivered more than once, counted each time they came again."""
        return sum(work.repeated for work in self.members.values())


@dataclass(frozen=True, kw_only=True)
class Showed:
    """What was to be seen on the way."""

    spark: str
    gained: int
    given_up: int
    uncommitted: int
    """Records that the killed member had processed and not committed."""


def of_results(seen: Consumed) -> list[str]:
    """Where the results differ from the direct pass, or offsets from each other."""
    wrong = []
    for carrier in sorted(seen.expected.keys() | seen.carriers.keys()):
        ours, theirs = seen.carriers.get(carrier), seen.expected.get(carrier)
        if ours != theirs:
            wrong.append(f"carrier {carrier}: the pipeline has {ours}, the direct pass {theirs}")
    in_log = sum(seen.ends.values())
    if in_log != seen.flights:
        wrong.append(f"the topic holds {in_log} records, {seen.flights} were sent")
    for partition, end in sorted(seen.ends.items()):
        for name, offsets in (("committed", seen.committed), ("stored", seen.positions)):
            offset = offsets.get(partition, 0)
            if offset != end:
                wrong.append(f"{partition}: {name} offset {offset}, end offset {end}")
    applied = sum(work.applied for work in seen.members.values())
    if applied != seen.flights:
        wrong.append(f"{applied} records were applied, {seen.flights} were sent")
    return wrong


def of_story(seen: Consumed, showed: Showed) -> list[str]:
    """Where the run did not show what it is there to show."""
    wrong = []
    if not showed.gained:
        wrong.append(f"{showed.spark} gained no partition")
    if not showed.given_up:
        wrong.append(f"{showed.spark} gave up no partition")
    work = seen.members.get(showed.spark)
    if work is None or not work.applied:
        wrong.append(f"{showed.spark} processed nothing")
    if not showed.uncommitted:
        wrong.append("the killed member had nothing processed that was not committed")
    if seen.repeated < showed.uncommitted:
        wrong.append(
            f"{showed.uncommitted} records were processed and not committed when the member was "
            f"killed, but only {seen.repeated} were delivered again"
        )
    return wrong
