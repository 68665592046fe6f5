"""What a member is after and does not hold yet: claims under way, and waits for other owners.

For each partition that the plan gives us:

```
            pursue                  Blocked                    rang, or its hand-over time is over
(not asked) ──────► under way ─────────────────► waiting ─────────────────────────────────────┐
                     ▲   │ Stale                                                              │
                     │   └──────► waiting for a newer plan, or a moment                       │
                     └────────────────────────────────────────────────────────────────────────┘
```

A ring is never thrown away: watches ring once, and may do so before the answer of the very claim that
armed them. One that comes while a claim is under way makes its answer old; it is acted on after it.
Pure: effects are appended to the list given.
"""

from dataclasses import dataclass

from folkmoot.consumers.group.events import ClaimPartition, Effect
from folkmoot.coordination.groups.ownership import Owner
from folkmoot.protocol.records import TopicPartition

NEVER = float("inf")


@dataclass(slots=True)
class _Waiting:
    """Asked and refused: ask again at `ask_at`. `stale`: it was for the plan, not for the owner.

    `patience` is what the owner is left, from when it has to let go.
    """

    ask_at: float
    owner: Owner | None = None
    steal_at: float = NEVER
    patience: float = NEVER
    stale: bool = False


class Claims:
    """The partitions pursued by one incarnation of a member; `pause` (s) lies between two attempts."""

    def __init__(self, effects: list[Effect], pause: float, steal_margin: float) -> None:
        self._effects = effects
        self._pause = pause
        self._steal_margin = steal_margin
        self._under_way: dict[TopicPartition, bool] = {}  # value: rang since it was asked
        self._waiting: dict[TopicPartition, _Waiting] = {}

    @property
    def idle(self) -> bool:
        """No claim is under way, so none can be won any more."""
        return not self._under_way

    def deadline(self) -> float | None:
        """When the next partition is to be asked for."""
        return min((waiting.ask_at for waiting in self._waiting.values()), default=None)

    def pursue(
        self, partition: TopicPartition, topic_id: str, plan_version: int, now: float
    ) -> None:
        """Ask for a partition of ours, unless that is under way or it is not time yet."""
        if partition in self._under_way:
            return
        waiting = self._waiting.get(partition)
        steal_from: Owner | None = None
        if waiting is not None:
            if now < waiting.ask_at:
                return
            if now >= waiting.steal_at:
                steal_from = waiting.owner
            waiting.ask_at = NEVER
            waiting.stale = False
        self._under_way[partition] = False
        self._effects.append(ClaimPartition(partition, topic_id, plan_version, steal_from))

    def rang(self, partition: TopicPartition, now: float) -> None:
        """The owner's node may have changed."""
        if partition in self._under_way:
            self._under_way[partition] = True
        elif partition in self._waiting:
            self._waiting[partition].ask_at = now

    def won(self, partition: TopicPartition) -> bool:
        """Ours. True if the owner's node may have changed since."""
        self._waiting.pop(partition, None)
        return self._under_way.pop(partition, False)

    def blocked(self, partition: TopicPartition, owner: Owner, ours: bool, now: float) -> None:
        """Another owns it, or `ours`: a claim of this incarnation that it gave up in doubt.

        The owner's hand-over time begins when it is first seen, and is not begun anew by looks.
        """
        rang = self._under_way.pop(partition, False)
        waiting = self._waiting.get(partition)
        if waiting is None or waiting.owner != owner:
            patience = 0.0 if ours else owner.hand_over + self._steal_margin
            steal_at = now + patience
            waiting = self._waiting[partition] = _Waiting(steal_at, owner, steal_at, patience)
        else:
            waiting.ask_at = max(waiting.steal_at, now + self._pause)
        if rang:
            waiting.ask_at = now

    def stale(self, partition: TopicPartition, now: float) -> None:
        """The claim was made under a plan, or a membership, that does not stand."""
        self._under_way.pop(partition, None)
        waiting = self._waiting.setdefault(partition, _Waiting(NEVER))
        waiting.ask_at = now + self._pause
        waiting.stale = True

    def refused(self, partition: TopicPartition) -> None:
        """A claim came to nothing that is no longer wanted."""
        self._under_way.pop(partition, None)
        self._waiting.pop(partition, None)

    def keep(self, mine: dict[TopicPartition, str], is_next: bool, now: float) -> None:
        """A newer plan is known: what it does not give us is not pursued, what was stale may be.

        What it leaves to us is waited for as before: plans that follow each other quickly do not
        keep a partition from being stolen. But one that we have missed may have given it back: then
        (not `is_next`) the owner has its time from now on.
        """
        for partition, waiting in list(self._waiting.items()):
            if partition not in mine:
                del self._waiting[partition]
                continue
            if not is_next:
                waiting.steal_at = now + waiting.patience
            if waiting.stale:
                waiting.stale = False
                waiting.ask_at = now

    def look_again(self, now: float) -> None:
        """Ask for all that we wait for, in case a ring was lost."""
        for partition, waiting in self._waiting.items():
            if partition not in self._under_way:
                waiting.ask_at = now

    def give_up(self) -> None:
        """Pursue nothing more; what is under way will be answered all the same."""
        self._waiting.clear()

    def forget(self) -> None:
        """The session is over: nothing is under way, and no answer will come."""
        self._waiting.clear()
        self._under_way.clear()
