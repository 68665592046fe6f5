"""How large a run is, and how patient its processes are."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from folkmoot.consumers.timing import Timing

MACHINE = 2.0
"""What the machine may take on its own, besides what it is seen to take."""

IN_A_HUNDRED: Mapping[str, int] = {
    "join": 21,
    "leave": 7,
    "kill": 7,
    "kill_both": 7,
    "kill_guardian": 7,
    "stop": 7,
    "expire": 8,
    "leader_killed": 6,
    "rolling_restart": 6,
    "zombie_fenced": 13,
    "zombie_expired": 11,
}
"""As many come as go; `events.py` says what each is."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All durations in seconds."""

    members: int = 20
    partitions: int = 100
    topics: int = 4
    session_timeout: float = 5.0
    tick: float = 0.5
    hand_over: float = 0.5
    send_every: float = 0.2
    """A record to every partition."""
    at_once: tuple[int, int] = (9, 15)
    """Events of one round."""
    spread: float = 1.5
    """They begin within this."""
    kinds: Mapping[str, int] = field(default_factory=lambda: IN_A_HUNDRED)
    """How many of each kind, until all begins anew."""

    def limit(self, deaths: int, *, crashed: bool) -> float:
        """L: after the last fault every partition is owned within this (docs/groups.md).

        `deaths` members may have died before they could plan in the others' place. What the machine
        takes on its own is not in it.
        """
        timing = Timing()
        rank = timing.patience * (deaths + 1)
        moved = self.hand_over + timing.steal_margin + timing.patience
        session = self.session_timeout + 2 * self.tick if crashed else 0.0
        return session + timing.debounce_limit + 1.5 * timing.debounce + rank + moved
