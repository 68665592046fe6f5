"""How patient a member is."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timing:
    """All in seconds, but for counts and shares."""

    debounce: float = 0.1
    """Wait this long (times 0.5 to 1.5) for more changes before planning."""
    debounce_limit: float = 2.0
    """However many changes come, a plan is not put off for longer than this."""
    patience: float = 0.25
    """Each younger member waits this much longer before it plans in the older ones' place; and so
    long everybody waits before asking again for what was refused."""
    sweep: float = 7.0
    """Read everything again this often (times 0.7 to 1.3), in case a watch was lost."""
    steal_margin: float = 0.5
    """Beyond the owner's own hand-over time, before its partition is stolen."""
    heartbeats: int = 6
    """So many signs of life in each session timeout."""
    trust: float = 2 / 3
    """The part of the session timeout without an answer after which nothing is held any more."""
