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
    StateWrite,
    Superseded,
    VersionedState,
)


@dataclass(frozen=True, slots=True)
class PersistEpoch:
    """Put on disk that this replica acts in leader epoch `epoch`; then call `confirm_epoch`."""

    epoch: int


Step = PersistEpoch | StateWrite | None
"""A StateWrite makes the broker the leader, or says that it cannot lead; then call `finish_activation`."""


class Role(Enum):
    """The role of a replica.

    ```
    WAITING ─► NOTING ─► CLAIMING ─► LEADING ─► WAITING, NOTING, CLAIMING
       │          └────► FOLLOWING ─► WAITING, NOTING, CLAIMING
       └─► FOLLOWING, CLAIMING              NOTING, CLAIMING ─► WAITING
    any ─► CLOSED
    ```
    """

    WAITING = "waiting"
    """For a leader, or for its state to be read again."""
    NOTING = "noting"
    """Its next leader epoch is being put on disk."""
    CLAIMING = "claiming"
    """Its activation, or its refusal to lead, is being written in ZooKeeper."""
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
    """The role of a replica, by the state of its partition as it was read last. No I/O, no clock.

    ```
    designated, in the ISR ─► persist epoch + 1 ─► compare-and-set, without brokers that are gone ─► leader
    designated, but lacks what it has acked ─► leave the ISR, let another be designated
    active elsewhere, in an epoch not below ours ─► persist that epoch ─► follower
    the same, but the topic's node was read before the last reassignment ended ─► wait for it
    anything else ─► a leader resigns; a follower continues, until another broker is active
    ```

    - **Activation** (rule 2). A designated broker in the ISR stops following, has the next epoch put on
      disk, and only then writes that it leads in it. It leads once that write is known to have succeeded.
      After a restart, a refusal or an unknown outcome it activates again, in a new epoch, if it is still
      designated. The same write takes brokers that are not `staying` out of the ISR. The controller
      leaves them in: if the designated broker cannot lead, one of them is needed.
    - **Persisted epochs** (rule 3). `epoch` is the highest on disk. The replica never acts in a lower
      one, even after a death in between. So it acks nothing more in an epoch that it has left.
    - **Resigning** (rule 8). A leader that reads that another broker is designated resigns.
    - **A disk that has lost something**, or is another one: the ISR counts on records that are not here.
      Such a replica does not lead (`may_lead`). It leaves the ISR if it is designated and not alone in
      there; a leader finds out by its fetch, and takes it out. With `durability=page-cache` the same
      holds for each log whose machine went down. But such a replica leads if it is elected and no other
      broker of the ISR is registered. After an unclean election both kinds lead.

    A death before the epoch is on disk changes nothing. After that the epoch is skipped, unless the
    activation finds the same number free. After the compare-and-set the state names a leader that does
    not lead. When it is back, it activates again, or the controller has designated another.

    One step is under way at a time; what is read meanwhile takes effect when it has ended.
    """

    def __init__(self, broker_id: int, epoch: int, registered: Set[int], staying: Set[int]) -> None:
        """`staying` are the registered brokers that are not about to stop. Their owner changes both sets."""
        self.broker_id = broker_id
        self.epoch = epoch
        self.registered = registered
        self.staying = staying
        self.leader: LeaderState | None = None
        self.follower: FollowerState | None = None
        self.known: VersionedState | None = None
        self.may_lead = True
        """False while the log may lack records that this replica has acked: its election would lose them."""
        self.may_lead_alone = False
        """It leads all the same if it is elected and no other broker of the ISR is registered."""
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

    def observe(self, current: VersionedState | None, *, settled: bool = False) -> Step:
        """The state was read, now or a while ago. Return the next step."""
        if self.leader is not None:
            self.leader.observe(current, settled=settled)
        if current is None:
            self.known = self.follower = None
        elif self.known is None or current.order >= self.known.order:
            self.known = current
            # A leader takes it into the ISR again only when it has everything.
            self.may_lead |= self.broker_id not in current.state.isr
        return self._next()

    def confirm_epoch(self, epoch: int) -> Step:
        """The epoch is on disk."""
        self.epoch = max(self.epoch, epoch)
        self._step = None
        return self._next()

    def fail_step(self) -> None:
        """The step could not be taken. The next call of `observe` returns it again."""
        self._step = None

    def finish_activation(
        self, answer: Answer | None, lead: Callable[[VersionedState], LeaderState]
    ) -> Step:
        """The activation has ended. None: its outcome is unknown, and the state is read again."""
        self._step = None
        if isinstance(answer, VersionedState):
            if answer.state.leader == self.broker_id and answer.state.active:
                self.leader = lead(answer)
            return self.observe(answer)
        if isinstance(answer, Superseded):
            return self.handle_refusal(answer.current)
        self.known = None
        return None

    def handle_refusal(self, current: VersionedState | None) -> Step:
        """A write of this broker was refused since the state is `current`. That is no old read. If a later
        one was known, ZooKeeper was set back, and the same write would be refused again."""
        self.known = None
        return self.observe(current)

    def _next(self) -> Step:
        """Return the next step, if none is under way; roles that are over end here."""
        if self.leader is not None and self.leader.resigned:
            self.leader = None
        if self._step is not None or self.known is None or self.leader is not None:
            return None
        state = self.known.state
        if state.leader == self.broker_id:
            self._step = self._as_designated(self.known)
        elif state.reassigned > self.reassigned:
            pass  # this may be no replica any more: the topic's node says so
        elif state.active and state.leader_epoch > self.epoch:
            self.follower = None
            self._step = PersistEpoch(state.leader_epoch)
        elif state.active and state.leader_epoch == self.epoch:
            if self.follower is None or self.follower.epoch != state.leader_epoch:
                self.follower = FollowerState(state.leader, state.leader_epoch)
        return self._step

    def _as_designated(self, known: VersionedState) -> Step:
        state = known.state
        if self.broker_id not in state.isr:
            return None
        others = [each for each in state.isr if each != self.broker_id]
        is_alone = not others or (not state.active and self.registered.isdisjoint(others))
        is_unclean = state.unclean_epoch > state.leader_epoch  # to lead with what it has
        if self.may_lead or (is_alone and (self.may_lead_alone or is_unclean)):
            return self._activation(known)
        if not (others or state.active):
            return None
        # Have another broker designated. The last one in sync says that no broker leads.
        leader, isr = (NOBODY, others) if others else (self.broker_id, state.isr)
        refusal = state.designate(leader, isr, state.controller_epoch)
        return StateWrite(refusal, known.partition_epoch)

    def _activation(self, known: VersionedState) -> Step:
        following = known.state.leader_epoch + 1
        if self.epoch > following:
            return None  # an old read
        self.follower = None
        if self.epoch < following:
            return PersistEpoch(following)
        isr = [each for each in known.state.isr if each == self.broker_id or each in self.staying]
        return StateWrite(known.state.with_isr(isr).activate(), known.partition_epoch)
