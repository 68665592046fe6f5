"""How large a run is, and how patient its processes are."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from folkmoot.consumers.group.liveness import Timing

MACHINE = 6.0
"""What the machine may take on its own, besides what it is seen to take: another process may stand still
for some seconds while the one that looks does not."""

IN_A_HAND: Mapping[str, int] = {
    "join": 4,
    "leave": 1,
    "kill": 2,
    "kill_both": 1,
    "kill_guardian": 1,
    "stop": 1,
    "expire": 1,
    "leader_killed": 1,
    "rolling_restart": 1,
    "zombie_fenced": 4,
    "zombie_expired": 3,
}
"""As many come as go, each kind is one of twenty or more; `events.py` says what each is."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All durations in seconds."""

    members: int = 20
    partitions: int = 100
    topics: int = 4
    session_timeout: float = 4.0
    long_session_timeout: float = 12.0
    """Of every other member: what is done to it takes place while its session lives."""
    tick: float = 0.5
    release_timeout: float = 0.5
    max_processing: float = 4.0
    """Long before a long session ends: others steal from who stands still, and the fence refuses it."""
    send_every: float = 1.0
    """A record to every partition."""
    kinds: Mapping[str, int] = field(default_factory=lambda: IN_A_HAND)
    """How many of each kind are one hand; nothing less is done."""
    hands: int = 3
    """So many are shuffled together and make two rounds."""
    calm: int = 20
    """Events of the first of the two, in which servers are left alone."""
    spread: float = 2.0
    """They begin within this; those of the second within as much for each event of servers."""

    def limit(self, deaths: int, session: float) -> float:
        """L: after the last fault every partition is owned within this (docs/groups.md).

        `deaths` members are dead and not yet known to be, so that they cannot plan in the others'
        place. `session` is the timeout of the longest session that may have to end by itself. What the
        machine takes on its own is not in it.
        """
        timing = Timing()
        rank = timing.patience * (deaths + 1)
        moved = self.release_timeout + timing.steal_margin + timing.patience
        ends = session + 2 * self.tick if session else 0.0
        crowd = timing.debounce_limit + timing.debounce_per_change * self.members
        return ends + crowd + 1.5 * timing.debounce + rank + moved


def once_each() -> Settings:
    """A small group to which everything is done once."""
    once = dict.fromkeys(IN_A_HAND, 1)
    return Settings(members=8, partitions=24, topics=2, kinds=once, hands=1, calm=4, spread=1.0)
