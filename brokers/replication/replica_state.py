"""One replica of a partition: whether its broker leads, follows or waits, as the partition's state says."""

from collections.abc import Callable, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

from folkmoot.brokers.replication.follower_state import FollowerState
from folkmoot.brokers.replication.leader_state import LeaderState
from folkmoot.coordination.partition_states import (
    NOBODY,
    Answer,
    PartitionState,
    StateWrite,
    Superseded,
    VersionedState,
)


@dataclass(frozen=True, slots=True)
class PersistEpoch:
    """Put on disk that this replica acts in leader epoch `epoch`; then call `persisted`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Activate:
    """Write this state, which makes the broker the leader, or says that it cannot be; then call
    `activated`."""

    write: StateWrite


Step = PersistEpoch | Activate | None


class Role(Enum):
    """What a replica does.

    ```
    WAITING ─► NOTING ─► CLAIMING ─► LEADING ─► WAITING, NOTING, CLAIMING
       │          └────► FOLLOWING ─► WAITING, NOTING, CLAIMING
       └─► FOLLOWING, CLAIMING              NOTING, CLAIMING ─► WAITING
    any ─► CLOSED
    ```
    """

    WAITING = "waiting"
    """For a leader, or until its state is read again."""
    NOTING = "noting"
    """The leader epoch in which it is to act is being put on disk."""
    CLAIMING = "claiming"
    """That it leads, or cannot, is being written in ZooKeeper."""
    LEADING = "leading"
    FOLLOWING = "following"
    CLOSED = "closed"
    """This broker has no replica any more."""


NEXT_ROLES: Final = {
    Role.WAITING: {Role.NOTING, Role.CLAIMING, Role.FOLLOWING, Role.CLOSED},
    Role.NOTING: {Role.WAITING, Role.CLAIMING, Role.FOLLOWING, Role.CLOSED},
    Role.CLAIMING: {Role.WAITING, Role.NOTING, Role.LEADING, Role.FOLLOWING, Role.CLOSED},
    Role.LEADING: {Role.WAITING, Role.NOTING, Role.CLAIMING, Role.CLOSED},
    Role.FOLLOWING: {Role.WAITING, Role.NOTING, Role.CLAIMING, Role.CLOSED},
    Role.CLOSED: set(),
}
"""The roles that may follow each role."""


class ReplicaState:
    """What a replica is, from the state of its partition as it was read last. No I/O, no clock.

    ```
    designated, in the ISR ─► persist epoch + 1 ─► compare-and-set, without brokers that are gone ─► leader
    designated, but lacks what it has acked ─► leave the ISR, let another be designated
    active elsewhere, in an epoch not below ours ─► persist that epoch ─► follower
    the same, but the topic's node was read before the last reassignment ended ─► wait for it
    anything else ─► as a leader: resign; as a follower: go on, until somebody else is active
    ```

    - **Activation** (rule 2). Who is designated, and in the ISR, leaves the epoch that it follows, has
      the next one on disk, and only then writes that it leads in it. It leads once that write is known
      to have succeeded. A restart, a refusal, an unknown outcome: it activates again, in a new epoch,
      if it is still designated. The same write takes brokers that are not `staying` out of the ISR. The
      controller leaves them in: if the designated broker cannot lead, one of them is needed.
    - **Persisted epochs** (rule 3). `epoch` is the highest that is on disk; nothing is done in a lower
      one. So a broker that has left an epoch for the next leader's never acks in the old one again,
      whatever it reads, and though it dies in between.
    - **Not a leader** (rule 8). A leader that reads that another is designated resigns.
    - **A disk that has lost something**, or is another one: the ISR counts on records that are not here.
      Such a replica does not lead (`may_lead`), and leaves the ISR if it is designated and not alone in
      there; a leader finds out by its fetch, and takes it out. With `durability=page-cache` the same
      holds for any log whose machine went down under it, but that one leads if it is elected, and no
      other broker of the ISR is registered. An unclean election has either lead.

    A death right before the epoch is on disk: nothing has happened. Right behind it: the epoch is
    skipped, unless the activation finds the same number free. Right behind the compare-and-set: the
    state names a leader that does not lead; when it is back, it activates again, or the controller has
    designated another.

    One step at a time is under way; what is read meanwhile is looked at when that has ended.
    """

    def __init__(self, broker_id: int, epoch: int, registered: Set[int], staying: Set[int]) -> None:
        """`staying` are the brokers that are registered and are not about to stop. The owner of the two sets
        changes them."""
        self.broker_id = broker_id
        self.epoch = epoch
        self.registered = registered
        self.staying = staying
        self.leader: LeaderState | None = None
        self.follower: FollowerState | None = None
        self.known: VersionedState | None = None
        self.may_lead = True
        """False while the log may lack records that this replica has acked: it would lose them for all."""
        self.may_lead_alone = False
        """Whether it leads all the same where it is elected, and no other broker of the ISR is registered:
        its topic has chosen that."""
        self.reassigned = 0
        """How many ended reassignments this broker knows of, by the topic's node."""
        self._step: Step = None

    @property
    def role(self) -> Role:
        if self.leader is not None:
            return Role.LEADING
        if self._step is not None:
            return Role.NOTING if isinstance(self._step, PersistEpoch) else Role.CLAIMING
        return Role.WAITING if self.follower is None else Role.FOLLOWING

    def observed(self, found: VersionedState | None, *, settled: bool = False) -> Step:
        """What the state is, or was a while ago → what to do next."""
        if self.leader is not None:
            self.leader.observed(found, settled=settled)
        if found is None:
            self.known = self.follower = None
        elif self.known is None or found.order >= self.known.order:
            self.known = found
            if self.broker_id not in found.state.isr:
                self.may_lead = (
                    True  # it is in there again only if a leader has seen that it has all
                )
        return self._next()

    def persisted(self, epoch: int) -> Step:
        """The epoch is on disk."""
        self.epoch = max(self.epoch, epoch)
        self._step = None
        return self._next()

    def failed(self) -> None:
        """The step could not be taken; it is tried again when the state is looked at next."""
        self._step = None

    def activated(
        self, answer: Answer | None, lead: Callable[[VersionedState], LeaderState]
    ) -> Step:
        """What became of the activation; None: it is not known, and the state is read again."""
        self._step = None
        if isinstance(answer, VersionedState):
            if answer.state.leader == self.broker_id and answer.state.active:
                self.leader = lead(answer)
            return self.observed(answer)
        if isinstance(answer, Superseded):
            return self.refused(answer.found)
        self.known = None
        return None

    def refused(self, found: VersionedState | None) -> Step:
        """What a write of this broker was refused for. That is no old read: if more was known before,
        ZooKeeper was set back, and the same write would be refused again."""
        self.known = None
        return self.observed(found)

    def _next(self) -> Step:
        """The next step, if none is under way; roles that are over end here."""
        if self.leader is not None and self.leader.resigned:
            self.leader = None
        if self._step is not None or self.known is None or self.leader is not None:
            return None
        state = self.known.state
        if state.leader == self.broker_id:
            is_asked = state.unclean_epoch > state.leader_epoch  # to lead with what it has
            is_alone = not any(
                state.active or each in self.registered for each in self._others(state)
            )
            may_lead = self.may_lead or ((self.may_lead_alone or is_asked) and is_alone)
            if self.broker_id in state.isr and may_lead:
                self._step = self._activation(self.known)
            elif self.broker_id in state.isr and (len(state.isr) > 1 or state.active):
                self._step = self._refusal(self.known)
        elif state.reassigned > self.reassigned:
            pass  # this may be no replica any more: the topic's node says so
        elif state.active and state.leader_epoch > self.epoch:
            self.follower = None
            self._step = PersistEpoch(state.leader_epoch)
        elif state.active and state.leader_epoch == self.epoch:
            if self.follower is None or self.follower.epoch != state.leader_epoch:
                self.follower = FollowerState(state.leader, state.leader_epoch)
        return self._step

    def _refusal(self, known: VersionedState) -> Step:
        """Let another be designated; who is alone in sync says that nobody leads."""
        others = self._others(known.state)
        leader, isr = (NOBODY, others) if others else (self.broker_id, known.state.isr)
        state = known.state.designate(leader, isr, known.state.controller_epoch)
        return Activate(StateWrite(state, known.partition_epoch))

    def _activation(self, known: VersionedState) -> Step:
        following = known.state.leader_epoch + 1
        if self.epoch > following:
            return None  # an old read
        self.follower = None
        if self.epoch < following:
            return PersistEpoch(following)
        isr = [each for each in known.state.isr if each == self.broker_id or each in self.staying]
        return Activate(StateWrite(known.state.with_isr(isr).activate(), known.partition_epoch))

    def _others(self, state: PartitionState) -> list[int]:
        return [each for each in state.isr if each != self.broker_id]
