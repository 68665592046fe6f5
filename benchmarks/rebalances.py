"""A group of member processes under a steady stream of records, and what a change of it costs them.

Everything is taken from the members' own delivery logs (clients/deliveries.py): which member was given
which partition when. So whatever delays a record counts: noticing, planning, handing over, the first fetch.
"""

import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from benchmarks.clients.deliveries import DeliveryReader
from benchmarks.peers import Server
from benchmarks.programs import Program

INTERVAL: Final = 0.02
SIZE: Final = 100
COMMIT_INTERVAL: Final = 1.0
SESSION_TIMEOUT: Final = 6.0
POLL_INTERVAL: Final = 0.1
CALM_TIME: Final = 1.5
"""Without an event, before one; and watched behind it, once everybody has a share."""
SILENCE: Final = 1.0
"""A partition that has delivered nothing for so long is not served."""
PATIENCE: Final = 30.0


class MemberDelivery(NamedTuple):
    """A delivery, and to whom."""

    at: float
    member: int
    partition: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a change of the group did; durations in seconds."""

    served_again: float
    """From the event until the last partition that moved was delivered by its new owner."""
    longest_pause: float
    """The longest time in which a partition that did not move delivered nothing."""
    pause_before: float
    """The same of all partitions, before the event: what the machine does by itself."""
    silent: int
    """Partitions that were not served even then."""
    moved: int
    twice: int
    """Records delivered to the old and to the new owner."""


def judge(deliveries: Sequence[MemberDelivery], at: float, until: float) -> Change:
    """What came of the event at `at`, by deliveries in the order of their times."""
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    first: dict[int, MemberDelivery] = {}  # of the owner at the end, since the event
    highest: dict[int, int] = {}  # offset given to the owner before
    touched: set[int] = set()  # also what moved to and fro
    for each in deliveries:
        if each.at > until:
            break
        if each.at <= at:
            before[each.partition] = each.member
        elif each.member != before.get(each.partition):
            touched.add(each.partition)
        if before.get(each.partition) == each.member:
            highest[each.partition] = max(highest.get(each.partition, -1), each.offset)
        if after.get(each.partition) != each.member:
            after[each.partition] = each.member
            first[each.partition] = each
    last = {each.partition: each.at for each in deliveries if each.at <= until}
    silent = {partition for partition in before if last[partition] < until - SILENCE}
    stayed = before.keys() - touched - silent
    waits = [first[each].at - at for each in touched] + [until - at for _ in silent]
    return Change(
        served_again=max(waits, default=0.0),
        longest_pause=_longest_gap(deliveries, at - INTERVAL, until, stayed),
        pause_before=_longest_gap(deliveries, at - CALM_TIME, at, before.keys()),
        silent=len(silent),
        moved=len(touched),
        twice=sum(max(0, highest.get(each, -1) + 1 - first[each].offset) for each in touched),
    )


def _longest_gap(
    deliveries: Sequence[MemberDelivery], since: float, until: float, partitions: Iterable[int]
) -> float:
    """In which one of the partitions delivered nothing to anybody."""
    last = dict.fromkeys(partitions, inf)
    longest = 0.0
    for each in deliveries:
        if each.partition in last and each.at <= until:
            if each.at >= since:
                longest = max(longest, each.at - last[each.partition])
            last[each.partition] = each.at
    return max([longest, *(until - at for at in last.values() if at < until)])


class Group:
    """Member processes and the producer that feeds them. Used as `with`, from the main thread."""

    def __init__(self, server: Server, partitions: int, **parameters: Any) -> None:
        self.deliveries: list[MemberDelivery] = []
        self.members: dict[int, Program] = {}
        self.guardians: dict[int, int | None] = {}
        self._server = server
        self._partitions = partitions
        self._parameters = {
            **parameters,
            "size": SIZE,
            "interval": INTERVAL,
            "commit_interval": COMMIT_INTERVAL,
            "session_timeout": SESSION_TIMEOUT,
        }
        self._stack = ExitStack()
        self._readers: dict[int, DeliveryReader] = {}
        self._last: dict[int, tuple[float, int]] = {}  # delivery of each partition
        self._read_at = 0.0
        self._count = 0

    def prepare(self) -> int:
        """Starts a member that is ready to join: Python and its imports are no part of a rebalance."""
        self._count += 1
        number, log = self._count, self._log(self._count)
        program = self._program("stay", log=str(log))
        program.wait_ready()
        self.members[number] = program
        self._readers[number] = DeliveryReader(log)
        return number

    def form(self, members: int) -> None:
        """All join at once; then records begin to come."""
        for number in [self.prepare() for _ in range(members)]:
            self.join(number)
        for number, program in self.members.items():
            self.guardians[number] = program.wait_for_event("joined", PATIENCE)["guardian"]
        producer = self._program("produce")
        producer.wait_ready()
        producer.go()
        self.settle(time.monotonic())

    def join(self, number: int) -> float:
        """→ when it got the word."""
        at = time.monotonic()
        self.members[number].go()
        return at

    def leave(self, number: int) -> float:
        """In order. → when it got the word."""
        at = time.monotonic()
        self.members.pop(number).go("leave")
        return at

    def kill(self, number: int, *, guardian: bool) -> float:
        """SIGKILL, also to its guardian if that is asked for. → when."""
        companion = self.guardians.get(number)
        if guardian and companion is not None:
            os.kill(companion, signal.SIGKILL)
        at = time.monotonic()
        os.kill(self.members.pop(number).pid, signal.SIGKILL)
        return at

    def owned(self, number: int) -> list[int]:
        """The partitions that it was the last to be given records of."""
        self._read_logs()
        return [partition for partition, (_, owner) in self._last.items() if owner == number]

    def owned_count(self, number: int) -> int:
        return len(self.owned(number))

    def delivered_offsets(self, number: int) -> dict[int, int]:
        """The offset behind the last record that it was given, of each partition."""
        self._read_logs()
        delivered = [each for each in self.deliveries if each.member == number]
        return {each.partition: each.offset + 1 for each in sorted(delivered)}

    def watch(self, seconds: float) -> None:
        """Let time pass."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(POLL_INTERVAL)
            self._read_logs()

    def settle(self, since: float) -> float:
        """Until all partitions are served, everybody has a share, and nothing moves any more.

        → when the logs were read last.

        After half a minute it is as it is.
        """
        deadline = time.monotonic() + PATIENCE
        calm_since = time.monotonic()
        owners: dict[int, int] = {}
        while not owners or time.monotonic() < calm_since + CALM_TIME:
            if time.monotonic() > deadline:
                break
            self.watch(POLL_INTERVAL)
            found = self._owners(since)
            if found != owners:
                owners, calm_since = found, time.monotonic()
        self.deliveries.sort()
        return self._read_at

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def _program(self, verb: str, **more: Any) -> Program:
        program = self._server.client(verb, program="members", **self._parameters, **more)
        return self._stack.enter_context(program)

    def _log(self, number: int) -> Path:
        return self._server.directory / f"{self._parameters['group']}-{number}.deliveries"

    def _read_logs(self) -> None:
        self._read_at = time.monotonic()
        for number, reader in self._readers.items():
            for at, partition, offset in reader.read_new():
                self.deliveries.append(MemberDelivery(at, number, partition, offset))
                self._last[partition] = max(self._last.get(partition, (0.0, 0)), (at, number))

    def _owners(self, since: float) -> dict[int, int]:
        """Who delivered each partition lately, and after `since`; nothing while any waits for that."""
        least = max(since, time.monotonic() - SILENCE)
        found = {
            partition: member
            for partition, (at, member) in self._last.items()
            if member in self.members and at >= least
        }
        is_complete = len(found) == self._partitions and set(found.values()) == set(self.members)
        return found if is_complete else {}
