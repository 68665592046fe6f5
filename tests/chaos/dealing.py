"""Which event comes when: drawn by lot, and yet each kind as often as it is asked for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from tests.chaos.events import DEPARTURES, ENSEMBLE

SWAY = 0.2
"""The group never becomes smaller or larger than by this part of it."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """The events of one round: those of members and those of servers, each in their order."""

    members: tuple[str, ...]
    servers: tuple[str, ...] = ()


def deal(random: Random, kinds: Mapping[str, int], calm: int, population: int) -> Iterator[Dealt]:
    """All of `kinds`, as many as it says: first `calm` of them while servers are left alone.

    In the second round servers are killed and restarted from its beginning to its end.
    """
    all_kinds = sorted(kind for kind, some in kinds.items() for _ in range(some))
    servers = [kind for kind in all_kinds if kind in ENSEMBLE]
    others = [kind for kind in all_kinds if kind not in ENSEMBLE]
    random.shuffle(servers)
    random.shuffle(others)
    most = max(round(SWAY * population), abs(_change(others)[-1]), 1)
    while max(map(abs, _change(others))) > most:
        random.shuffle(others)
    rounds = Dealt(tuple(others[:calm])), Dealt(tuple(others[calm:]), tuple(servers))
    yield from (each for each in rounds if each.members or each.servers)


def _change(kinds: list[str]) -> list[int]:
    """By how many members a group is larger than at the beginning, from there on event by event."""
    steps = ((kind == "join") - (kind in DEPARTURES) for kind in kinds)
    return list(accumulate(steps, initial=0))
