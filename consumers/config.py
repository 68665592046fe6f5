"""What a consumer can be told."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from folkmoot.consumers.assignors.assignor import Assignor
from folkmoot.consumers.assignors.next_plan import assignors_of
from folkmoot.coordination.zookeeper.session import Connect
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.names import check_name
from folkmoot.protocol.options import check_numbers

LEAST_PROCESSING_TIME = 2.0
"""While it waits for records a consumer shows itself every second."""


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """Settings of a consumer; durations in seconds, sizes in bytes."""

    zookeeper: str | Connect
    """Connect string with its chroot, or something that opens a session."""
    group: str | None = None
    """The group to join; without one, partitions are assigned by hand and nothing is committed."""
    topics: Sequence[str] = ()
    """The topics whose partitions the group divides; members may want different ones."""
    pattern: str = ""
    """A regular expression: topics whose whole name matches are wanted, too, as soon as they exist."""
    instance_id: str | None = None
    """Makes a static member: who comes back under it within `grace` finds what it had. Of two
    processes with one id the younger counts."""
    grace: float = 30.0
    """How long a static member's partitions are kept for it when it is gone."""
    assignors: Sequence[str | Assignor] = ("sticky",)
    """Ways of dividing that this member can carry out, preferred first: "sticky", "range",
    "round-robin", or an object. What the eldest member of the group prefers counts."""
    rack: str = ""
    """Where this member stands: it is given partitions whose leader stands there first."""
    client_id: str = "consumer"
    """Begins the member's name, and is what brokers see."""
    listener: str = "client"
    """Which of the brokers' listeners to connect to."""
    auto_commit: bool = True
    """Commit what was processed every `commit_interval`, when a partition is given up, and on close."""
    commit_interval: float = 5.0
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    """Where to start without a committed offset, or when it is out of range."""
    session_timeout: float = 6.0
    """After this long without a sign of life the partitions go to others."""
    guardian: bool = True
    """Where the system allows it, a process beside this one ends its session at once if this one dies."""
    hand_over: float = 2.0
    """How long this member may take to give a partition up; the successor steals it after that."""
    max_processing_time: float | None = 300.0
    """If the application does not ask for records for so long, its partitions go to others until it
    does; None: it may stay away."""
    max_poll_records: int = 500
    """How many records one `poll` hands out at most."""
    fetch_max_wait: float = 0.5
    """How long a broker may hold a fetch back for `fetch_min_bytes`."""
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 8 * 1024 * 1024
    """Of one fetch, over all its partitions; one batch comes whole in any case."""
    partition_fetch_bytes: int = 1024 * 1024
    """Of one partition in one fetch."""
    buffer_bytes: int = 32 * 1024 * 1024
    """Fetched ahead, not yet handed out; nothing more is fetched beyond it."""
    request_timeout: float = 30.0

    def __post_init__(self) -> None:
        check_numbers(self)
        check_name("client id", self.client_id)
        if self.group is not None:
            check_name("group", self.group)
        if isinstance(self.topics, str):
            raise ConfigError(f"topics must be a list of names: topics=[{self.topics!r}]")
        for topic in self.topics:
            check_name("topic", topic)
        if (self.topics or self.pattern) and self.group is None:
            raise ConfigError("topics are divided within a group: give group=…, or use assign()")
        self._check_member()
        if self.auto_offset_reset not in ("earliest", "latest", "error"):
            raise ConfigError(
                f"auto_offset_reset {self.auto_offset_reset!r} is not known: "
                "use 'earliest', 'latest' or 'error'"
            )
        for name in (
            *("commit_interval", "session_timeout", "hand_over", "request_timeout"),
            *("max_poll_records", "fetch_max_bytes", "partition_fetch_bytes", "buffer_bytes"),
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be greater than 0, not {getattr(self, name)!r}")
        for name in ("fetch_max_wait", "fetch_min_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative: {getattr(self, name)!r}")

    def _check_member(self) -> None:
        """What the group is told of this member. Raises ConfigError."""
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(
                f"pattern {self.pattern!r} is no regular expression: {error}"
            ) from None
        if self.instance_id is not None:
            check_name("instance id", self.instance_id)
        if isinstance(self.assignors, str):
            raise ConfigError(f"assignors must be a list of names: assignors=[{self.assignors!r}]")
        assignors_of(self.assignors)
        if not self.grace >= 0:
            raise ConfigError(f"grace must not be negative: {self.grace!r}")
        limit = self.max_processing_time
        if limit is not None and not limit >= LEAST_PROCESSING_TIME:
            raise ConfigError(
                f"max_processing_time must be at least {LEAST_PROCESSING_TIME:g}, or None: {limit!r}"
            )
