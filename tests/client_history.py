"""What producers and consumers of a cluster have seen, and what must hold of it, whatever happened.

The kinds of faults are those of Jepsen's checker of Kafka (`jepsen.tests.kafka`), one by one, without
those of transactions, and with ours. A simulator and a test with real processes are judged by the same.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

Value = int | bytes


class Seen(NamedTuple):
    """A record, where a consumer has found it."""

    partition: int
    offset: int
    value: Value


class _Sent(NamedTuple):
    """One acknowledged record; `operation` numbers what a producer handed over together."""

    operation: int
    position: int
    offset: int
    value: Value


class ClientHistory:
    """Takes events in the order in which each client saw them; `faults` then says what is wrong.

    Values are unique. An offset is of a partition of one topic.
    """

    def __init__(self) -> None:
        self.forgotten = 0
        """Records before it may be deleted: a replica that was copied since knows no producer that has no
        others, and takes what such a one sends again for new."""
        self.acknowledged: dict[tuple[int, int], Value] = {}
        self._twice: list[str] = []
        self._sent: defaultdict[tuple[str, int], list[_Sent]] = defaultdict(list)
        self._polls: defaultdict[str, list[list[Seen] | None]] = defaultdict(list)
        self._final: list[Seen] | None = None
        self._marks: dict[tuple[str, str], int] = {}
        self._went_back: defaultdict[str, list[str]] = defaultdict(list)

    # -- events -------------------------------------------------------------------------------------

    def acknowledge(
        self,
        producer: str,
        operation: int,
        position: int,
        partition: int,
        offset: int,
        value: Value,
    ) -> None:
        """A producer's record was acknowledged: the `position`th of what was handed over together."""
        self._sent[producer, partition].append(_Sent(operation, position, offset, value))
        other = self.acknowledged.setdefault((partition, offset), value)
        if other != value:
            self._twice.append(f"{other!r} and {value!r} are acknowledged at {partition}/{offset}")

    def poll(self, consumer: str, records: Iterable[Seen]) -> None:
        """What a consumer was given at once."""
        some = list(records)
        if some:
            self._polls[consumer].append(some)

    def move(self, consumer: str) -> None:
        """It goes on elsewhere: it was assigned anew, or has sought."""
        self._polls[consumer].append(None)

    def high_watermark(self, where: str, offset: int) -> None:
        """As somebody is told of it who must never see it fall."""
        self._mark("hw-regress", where, offset)

    def leader_epoch(self, where: str, epoch: int) -> None:
        self._mark("epoch-regress", where, epoch)

    def finally_read(self, records: Iterable[Seen]) -> None:
        """All that the log has in the end."""
        self._final = list(records)

    def _mark(self, kind: str, where: str, now: int) -> None:
        before = self._marks.get((kind, where), now)
        if now < before:
            self._went_back[kind].append(f"{where}: {before} became {now}")
        self._marks[kind, where] = max(before, now)

    # -- what is wrong ------------------------------------------------------------------------------

    @property
    def seen(self) -> int:
        """How many records consumers were given before the end."""
        return sum(len(poll) for polls in self._polls.values() for poll in polls if poll)

    def faults(self) -> Mapping[str, Sequence[str]]:
        """Kind → what is wrong, one line each. Empty: all is well."""
        found = defaultdict(list, {kind: list(said) for kind, said in self._went_back.items()})
        everything = [
            seen for polls in self._polls.values() for poll in polls if poll for seen in poll
        ] + (self._final or [])
        self._values(found, everything)
        self._losses(found, everything)
        for consumer, polls in self._polls.items():
            self._order_of_polls(found, consumer, polls)
        for (producer, partition), sent in self._sent.items():
            _order_of_sends(found, f"{producer}, partition {partition}", sent)
        return {kind: said for kind, said in sorted(found.items()) if said}

    def _values(self, found: dict[str, list[str]], everything: Sequence[Seen]) -> None:
        """`duplicate`, `inconsistent-offsets`."""
        found["inconsistent-offsets"] += self._twice
        values: dict[tuple[int, int], Value] = dict(self.acknowledged)
        places: dict[Value, tuple[int, int]] = {each: at for at, each in values.items()}
        if len(places) < len(values):
            found["duplicate"].append("a record was acknowledged twice")
        for partition, offset, value in everything:
            at = partition, offset
            if values.setdefault(at, value) != value:
                said = f"{values[at]!r} and {value!r} at {partition}/{offset}"
                found["inconsistent-offsets"].append(said)
            first = places.setdefault(value, at)
            if first != at and min(first[1], offset) >= self.forgotten:
                found["duplicate"].append(f"{value!r} at {first} and {at}")
        self._offsets: dict[int, list[int]] = defaultdict(list)
        for partition, offset in sorted(values):
            self._offsets[partition].append(offset)

    def _losses(self, found: dict[str, list[str]], everything: Sequence[Seen]) -> None:
        """`lost-write`: acknowledged, and passed over by who has read further; `unseen`: not read yet;
        ours, `vanished`: a consumer has seen it, and in the end it is not there."""
        at = {(seen.partition, seen.offset, seen.value) for seen in everything}
        furthest: dict[int, int] = {}
        for seen in everything:
            furthest[seen.partition] = max(furthest.get(seen.partition, -1), seen.offset)
        for (partition, offset), value in self.acknowledged.items():
            if (partition, offset, value) not in at:
                kind = "lost-write" if offset <= furthest.get(partition, -1) else "unseen"
                found[kind].append(f"{value!r} at {partition}/{offset}")
        if self._final is not None:
            there = set(self._final)
            found["vanished"] += [f"{each}" for each in set(everything) - there]
            gone = set(self.acknowledged.items())
            gone -= {((each.partition, each.offset), each.value) for each in self._final}
            found["lost-write"] += [f"{value!r} at {where}, in the end" for where, value in gone]

    def _order_of_polls(
        self, found: dict[str, list[str]], consumer: str, polls: Sequence[list[Seen] | None]
    ) -> None:
        """`poll-skip` and `nonmonotonic-poll`, and the same within one poll (`int-`)."""
        last: dict[int, int] = {}
        for poll in polls:
            if poll is None:
                last.clear()
                continue
            within: set[int] = set()
            for partition, offset, _ in poll:
                if partition in last:
                    kind = "int-" if partition in within else ""
                    before = last[partition]
                    said = f"{consumer}, partition {partition}: {before}, then {offset}"
                    if offset <= before:
                        found[f"{kind}nonmonotonic-poll"].append(said)
                    elif self._has_between(partition, before, offset):
                        found[f"{kind}poll-skip"].append(said)
                last[partition] = offset
                within.add(partition)

    def _has_between(self, partition: int, before: int, after: int) -> bool:
        if after == before + 1:
            return False
        return any(before < offset < after for offset in self._offsets[partition])


def _order_of_sends(found: dict[str, list[str]], who: str, sent: Sequence[_Sent]) -> None:
    """`nonmonotonic-send`, and within what was handed over together `int-nonmonotonic-send` and
    `int-send-skip`: a batch has its offsets one behind the other."""
    for before, after in pairwise(sorted(sent)):
        said = f"{who}: {before.value!r} at {before.offset}, then {after.value!r} at {after.offset}"
        kind = "int-" if before.operation == after.operation else ""
        if after.offset <= before.offset:
            found[f"{kind}nonmonotonic-send"].append(said)
        elif kind and after.offset - before.offset != after.position - before.position:
            found["int-send-skip"].append(said)
