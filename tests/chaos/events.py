"""The faults, each as a script: a generator that does something, yields until it has come to pass, goes on.

Scripts run side by side (`rounds.py` steps them), each on a member of its own. What a script finds wrong
it notes in the history's breaches.
"""

import signal
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import Any

from kazoo.exceptions import (
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.interfaces import IAsyncResult

from folkmoot.coordination import paths
from folkmoot.protocol.records import TopicPartition
from tests.chaos.scene import CHROOT, GROUP, MemberProcess, Scene

MEMBERS = CHROOT + paths.members(GROUP)
BACK = 2.0
"""Within this a member whose session was closed has another, as a rule."""
Script = Generator[None, None, None]
PATIENCE = 90.0
_NO_ANSWER = (ConnectionLoss, OperationTimeoutError, SessionExpiredError, SessionMovedError)


@dataclass(slots=True)
class Event:
    """One event: what was done, when, and which partitions had to find another owner."""

    kind: str
    member: str = ""
    begun: float = 0.0
    since: float = 0.0
    """When the partitions' owner stopped serving them."""
    disturbed: float = 0.0
    """When the last thing was done to anybody; what follows has L to come to rest."""
    ended: float = 0.0
    affected: dict[TopicPartition, int] = field(default_factory=dict)
    """The partitions that it took from their owner, with the epochs of then."""
    recovered: float | None = None
    """How long after that the last of them was claimed again, in seconds."""
    tried: bool = False
    """A zombie had a commit in its hands whose partitions had all been claimed by others."""
    refusal: str = ""
    shaken: bool = False
    """ZooKeeper itself was done something to in the same round."""


class Breach(Exception):
    """The group did not do what it promises."""


def _until(what: str, condition: Callable[[], object], patience: float = PATIENCE) -> Script:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise Breach(f"not within {patience:g} s: {what}")
        yield


def surely(begin: Callable[[], "IAsyncResult[Any]"], already: type[Exception]) -> Script:
    """Until ZooKeeper says that it is done, or was `already`: a reply that is lost is asked for again."""
    while True:
        answer = begin()
        yield from _until("ZooKeeper answers", answer.ready)
        if answer.exception is None or isinstance(answer.exception, already):
            return
        if not isinstance(answer.exception, _NO_ANSWER):
            raise answer.exception
        yield


def _takes(scene: Scene, event: Event, member: MemberProcess) -> None:
    """From now on the member does not serve what it owns."""
    event.since = event.disturbed = time.time()
    owned = scene.history.owned_by(member.name)
    event.affected = {each: scene.history.lives[each].state.epoch for each in owned}


def _all_claimed(scene: Scene, places: dict[TopicPartition, int]) -> bool:
    lives = scene.history.lives
    return all(lives[place].state.epoch > epoch for place, epoch in places.items())


def _ended(scene: Scene, member: MemberProcess, code: int) -> Script:
    yield from _until(f"{member.name} ends", lambda: member.pid in scene.nursery.ended)
    member.take_in()
    member.alive = False
    found = scene.nursery.ended[member.pid]
    if found != code:
        raise Breach(f"{member.name} ended with {found}: {member.said()}")


def join(scene: Scene, event: Event) -> Script:
    """A new member."""
    member = scene.start_member()
    event.member = member.name
    begun = time.time()
    yield from _until(f"{member.name} owns something", lambda: scene.history.owned_by(member.name))
    event.disturbed = time.time()
    event.recovered = event.disturbed - begun


def leave(scene: Scene, event: Event, member: MemberProcess) -> Script:
    """A member closes its consumer and ends."""
    _takes(scene, event, member)
    scene.signal(member, signal.SIGTERM)
    yield from _ended(scene, member, 0)
    yield from _until(f"{member.name} is gone", lambda: not scene.history.owned_by(member.name))


def kill(scene: Scene, event: Event, member: MemberProcess) -> Script:
    """SIGKILL; its guardian ends the session, long before that would end by itself."""
    guarded = member.guardian() is not None
    _takes(scene, event, member)
    scene.signal(member, signal.SIGKILL)
    yield from _ended(scene, member, -signal.SIGKILL)
    if not guarded:
        raise Breach(f"{member.name} had no guardian")
    yield from _until(f"{member.name} is gone", lambda: not scene.history.owned_by(member.name))


def kill_both(scene: Scene, event: Event, member: MemberProcess) -> Script:
    """SIGKILL to the guardian and to the member: the session timeout decides."""
    _takes(scene, event, member)
    member.kill_guardian()
    scene.signal(member, signal.SIGKILL)
    yield from _ended(scene, member, -signal.SIGKILL)
    yield from _until(f"{member.name} is gone", lambda: not scene.history.owned_by(member.name))


def kill_guardian(scene: Scene, event: Event, member: MemberProcess) -> Script:
    """SIGKILL to the guardian alone: the member goes on, in its session and with what it owns."""
    session = member.sessions[-1]
    if not member.kill_guardian():
        raise Breach(f"{member.name} had no guardian")
    reads = len(member.reads)
    yield from _until(
        f"{member.name} goes on without guardian",
        lambda: len(member.reads) > reads + 2 or member.sessions[-1] != session,
    )


def stop(scene: Scene, event: Event, member: MemberProcess) -> Script:
    """SIGSTOP until others have claimed all it had; the guardian stays still meanwhile; SIGCONT."""
    _takes(scene, event, member)
    guardian = member.guardian()
    scene.signal(member, signal.SIGSTOP)
    history = scene.history
    registered = {n: e for n, e in history.members.items() if n.startswith(f"{member.name}-")}
    yield from _until(
        f"the session of {member.name} is over",
        lambda: history.members.keys().isdisjoint(registered),
    )
    ends = [history.ended.get(each.session) for each in registered.values()]
    if any(each is not None and each.ends == "closed" for each in ends):
        raise Breach(f"the session of {member.name} was closed although it was only stopped")
    yield from _until("all is claimed", lambda: _all_claimed(scene, event.affected))
    if guardian != member.guardian():
        raise Breach(f"the guardian of {member.name} did not stay: {guardian}")
    event.disturbed = time.time()
    scene.signal(member, signal.SIGCONT)


def expire(scene: Scene, event: Event, member: MemberProcess) -> Script:
    """A second client closes the member's session: it joins anew, and has a guardian then."""
    _takes(scene, event, member)
    sessions = len(member.sessions)
    deadline = time.monotonic() + PATIENCE
    while len(member.sessions) == sessions:
        if time.monotonic() > deadline:
            raise Breach(
                f"{member.name} is not back within {PATIENCE:g} s after its session expired"
            )
        # The member may take its session back before the twin has closed it, or no server leads.
        twin = Thread(target=scene.expire, args=(member.sessions[-1],), daemon=True)
        twin.start()
        while twin.is_alive():
            yield
        event.disturbed = time.time()
        tried = time.monotonic()
        while len(member.sessions) == sessions and time.monotonic() < tried + BACK:
            yield
    yield from _until(f"{member.name} is guarded", lambda: member.guardian() is not None)


def zombie_fenced(scene: Scene, event: Event, member: MemberProcess) -> Script:
    """Stopped in front of its commit; its node is removed and all is stolen; then the node is there again.

    Session and membership speak for it when its commit arrives: it is the fence alone that refuses.
    """
    yield from _halt(scene, event, member)
    registered = [name for name in scene.history.members if name.startswith(f"{member.name}-")]
    for name in registered:
        yield from _removed(scene, name)
    yield from _wake_as_zombie(scene, event, member, registered)


def zombie_expired(scene: Scene, event: Event, member: MemberProcess) -> Script:
    """Stopped in front of its commit until its session is over and all is claimed by others."""
    yield from _halt(scene, event, member)
    yield from _wake_as_zombie(scene, event, member, [])


def _halt(scene: Scene, event: Event, member: MemberProcess) -> Script:
    halted = len(member.halted)
    scene.signal(member, signal.SIGUSR1)
    yield from _until(
        f"{member.name} stops in front of a commit",
        lambda: len(member.halted) > halted and member.is_stopped,
    )
    _takes(scene, event, member)


def _wake_as_zombie(scene: Scene, event: Event, member: MemberProcess, names: list[str]) -> Script:
    """When others own all it had; while it commits the nodes of these names are there once more."""
    held: dict[TopicPartition, int] = {}
    for place in member.halted[-1]:
        topic, number, epoch, _ = place.rsplit("/", 3)
        held[TopicPartition(topic, int(number))] = int(epoch)
    yield from _until("all is claimed", lambda: _all_claimed(scene, event.affected | held))
    event.tried = True
    outcomes = len(member.outcomes)
    event.disturbed = time.time()
    for name in names:
        make = partial(scene.client.create_async, f"{MEMBERS}/{name}", b"{}", ephemeral=True)
        yield from surely(make, NodeExistsError)
    scene.signal(member, signal.SIGCONT)
    yield from _until(f"{member.name} hears of its commit", lambda: len(member.outcomes) > outcomes)
    for name in names:
        yield from _removed(scene, name)
    event.disturbed = time.time()
    event.refusal = member.outcomes[outcomes]
    if event.refusal == "done":
        raise Breach(f"a zombie's commit was done: {member.name} {member.halted[-1]}")


def _removed(scene: Scene, name: str) -> Script:
    """A member's node is gone."""
    yield from surely(partial(scene.client.delete_async, f"{MEMBERS}/{name}"), NoNodeError)


def leader_killed(scene: Scene, event: Event) -> Script:
    """SIGKILL to the leading server, which starts again when the others have elected another."""

    yield from _aside(scene.ensemble.kill_leader)
    event.disturbed = time.time()


def rolling_restart(scene: Scene, event: Event) -> Script:
    """One server after the other is stopped and started again, the leader last."""

    yield from _aside(scene.ensemble.restart_all)
    event.disturbed = time.time()


def _aside(work: Callable[[], None]) -> Script:
    raised: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=body, daemon=True)
    thread.start()
    yield from _until("ZooKeeper is whole again", lambda: not thread.is_alive(), 600.0)
    if raised:
        raise Breach(f"ZooKeeper is not whole again: {raised[0]}")


ON_A_MEMBER: dict[str, Callable[[Scene, Event, MemberProcess], Script]] = {
    each.__name__: each
    for each in (leave, kill, kill_both, kill_guardian, stop, expire, zombie_fenced, zombie_expired)
}
ON_ALL: dict[str, Callable[[Scene, Event], Script]] = {
    each.__name__: each for each in (join, leader_killed, rolling_restart)
}
ENSEMBLE = frozenset({"leader_killed", "rolling_restart"})
CRASHES = frozenset({"kill_both", "stop", "zombie_expired", "zombie_fenced", "kill"}) | ENSEMBLE
OF_A_LONG_SESSION = frozenset({"zombie_fenced", "kill"})
"""Its victims' sessions live on, or are ended by a guardian, which may be kept for a while; those of all
other crashes have to end by themselves."""
DEATHS = CRASHES - ENSEMBLE | {"expire"}
"""After these a member is dead for a while before others know."""
DEPARTURES = frozenset({"leave", "kill", "kill_both"})
