"""The order of events of the first pass: work, a kill, others take over, a new member, handed back.

```
WORKING ── enough sent, all at work, somebody has processed and not committed ──► kill ──► BEREFT
BEREFT ── all partitions settled among the living ──► start a new member ──► JOINED
JOINED ── all partitions settled, the new one owns some ──► DONE
```
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from folkmoot.console.demo.members import SPARK, MemberProcess, Members
from folkmoot.console.demo.store import ResultStore
from folkmoot.console.demo.watch import Watch
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition

NEWCOMER: Final = "plain-4"
KILL_AFTER: Final = 0.2
"""Share of all flights that is sent before the kill."""


class DemoFailed(FolkmootError):
    """The demo did not come to its end, or did not show what it is there to show."""


class Stage(Enum):
    """Where the story is."""

    WORKING = "working"
    BEREFT = "bereft"
    JOINED = "joined"
    DONE = "done"


_LIMITS: Final = {Stage.WORKING: 0.5, Stage.BEREFT: 0.75, Stage.JOINED: 0.9, Stage.DONE: 1.0}


class Story:
    """Decides when the kill and the join are due, and does them. One thread uses it."""

    def __init__(
        self,
        members: Members,
        watch: Watch,
        store: ResultStore,
        committed: Callable[[], Mapping[TopicPartition, int]],
    ) -> None:
        self.stage = Stage.WORKING
        self.victim = ""
        self.uncommitted = 0
        """Records that the victim had processed and not committed when it was killed."""
        self._members = members
        self._watch = watch
        self._store = store
        self._committed = committed

    @property
    def limit(self) -> float:
        """The share of all flights that may be sent at full pace: the rest is for what comes."""
        return _LIMITS[self.stage]

    def step(self, sent: float) -> list[str]:
        """Go on if it is time, given the share of flights sent. → lines to show."""
        match self.stage:
            case Stage.WORKING:
                victim = self._candidate() if sent >= KILL_AFTER else None
                return [] if victim is None else self._kill(victim)
            case Stage.BEREFT:
                if self._watch.settled and self.victim not in self._watch.shares:
                    self._members.start_plain(NEWCOMER)
                    self.stage = Stage.JOINED
                    return [f"started {NEWCOMER}"]
            case Stage.JOINED:
                if self._watch.settled and NEWCOMER in self._watch.shares:
                    self.stage = Stage.DONE
            case Stage.DONE:
                pass
        return []

    def _candidate(self) -> MemberProcess | None:
        """The plain member with most to lose, once everybody has processed something."""
        work = self._store.members()
        names = self._members.running
        if not self._watch.settled or not all(
            name in work and work[name].applied for name in names
        ):
            return None
        plain = [member for name, member in names.items() if name != SPARK]
        ready = [member for member in plain if member.has_uncommitted]
        return max(ready, key=lambda member: int(member.progress["uncommitted"]), default=None)

    def _kill(self, victim: MemberProcess) -> list[str]:
        """Kill it in a state that is known: it stands still while its work is counted.

        Once it is dead, its guardian ends its session at once, and others process on and commit.
        """
        partitions = self._watch.shares.get(victim.name, [])
        self._members.pause(victim.name)
        committed = self._committed()
        uncommitted = sum(
            position - committed.get(each, 0)
            for each, position in self._store.positions().items()
            if each.partition in partitions
        )
        if not uncommitted:  # it committed after it had reported
            self._members.resume(victim.name)
            return []
        self._members.kill(victim.name)
        self.victim, self.uncommitted = victim.name, uncommitted
        self.stage = Stage.BEREFT
        some = ", ".join(map(str, partitions))
        return [
            f"killed {victim.name} (SIGKILL), owner of partitions {some}, with "
            f"{self.uncommitted:,} records processed but not committed"
        ]
