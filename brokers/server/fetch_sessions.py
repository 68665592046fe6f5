"""Sessions keep the other partitions of an answered fetch, so that the next fetch costs only the changes.

```
7: fetch a b c, keep ─► waits ─ append to b ─► answer: b; kept are a and c, still watched
8: fetch b, after 7, keep ─► waits on a, b and c
```
"""

from math import inf
from typing import Final, Generic, TypeVar

from folkmoot.brokers.replication.partition import Partition, Session
from folkmoot.brokers.server.purgatory import Answer, DelayedFetch, Purgatory, Quota, Request
from folkmoot.protocol.errors import Overloaded
from folkmoot.protocol.messages import FetchEntry

MAX_WATCHES: Final = 100_000
MAX_WATCHES_PER_PEER: Final = 30_000

_Entry = TypeVar("_Entry")


class FetchSession(Session, Generic[_Entry]):
    """The partitions that one client has named and not been answered yet.

    `entries` are watched: their partitions report each event. `changed` are those with an event since
    they were last read, the oldest event first. Subclasses decide which events complete the fetch that
    waits: a consumer's waits for committed bytes, a follower's for anything new.
    """

    __slots__ = ("_purgatory", "changed", "delayed", "entries", "peer")

    def __init__(self, purgatory: Purgatory, peer: bytes) -> None:
        self.peer = peer
        self.entries: dict[Partition, _Entry] = {}
        self.changed: dict[Partition, None] = {}
        self.delayed: DelayedFetch | None = None
        """The fetch that waits, or was completed and is not answered yet."""
        self._purgatory = purgatory

    def watch(self, partition: Partition, entry: _Entry) -> None:
        """Have a partition report its events from now on."""
        self.entries[partition] = entry
        partition.sessions[self] = None

    def forget(self, *partitions: Partition) -> None:
        """End the watch of these, until they are named again."""
        for partition in partitions:
            self.entries.pop(partition, None)
            self.changed.pop(partition, None)
            partition.sessions.pop(self, None)

    def delay(self, request: Request, deadline: float, answer: Answer) -> None:
        """Let its fetch wait."""
        self.delayed = self._purgatory.delay(request, deadline, answer)

    def wake(self) -> None:
        """End the wait of its fetch."""
        if self.delayed is not None:
            self._purgatory.complete(self.delayed)


class ConsumerSession(FetchSession[FetchEntry]):
    """A consumer's session. While its fetch waits, `missing` committed bytes complete it."""

    __slots__ = ("created_at", "forget_at", "held", "missing")

    def __init__(self, purgatory: Purgatory, peer: bytes, created_at: float) -> None:
        super().__init__(purgatory, peer)
        self.created_at = created_at
        self.forget_at = inf
        self.missing: float = 0
        self.held = 0
        """The number of watches taken for it."""

    def take_changed(self) -> list[FetchEntry]:
        """Take the entries with events: to be read, and watched again."""
        entries = [self.entries[partition] for partition in self.changed]
        self.forget(*self.changed)
        return entries

    def committed(self, partition: Partition, size: float) -> None:
        self.changed[partition] = None
        self.missing -= size
        if self.missing <= 0:
            self.wake()


class FetchSessions:
    """Consumers' sessions that are kept between two fetches, and the bounds of all watches.

    An answered session is either kept (`keep`) until its client continues it (`resume`), or released. A
    connection has one session at a time, which is continued once.

    The watches of one peer, and those of all peers, are bounded. Kept sessions expire; when room is
    needed, the peer's own is released first, then the oldest. Owner: the event loop.
    """

    def __init__(self, watches: Quota | None = None) -> None:
        self._watches = watches or Quota(MAX_WATCHES_PER_PEER, MAX_WATCHES)
        self._cached: dict[bytes, tuple[int, ConsumerSession]] = {}

    def require_room(self, session: ConsumerSession) -> None:
        """Take room for all that it watches. Raises Overloaded."""
        more, peer = len(session.entries) - session.held, session.peer
        if not self._watches.has_room(peer, more):
            self._forget(peer)
        while self._cached and not self._watches.has_room_in_all(more):
            self._forget(next(iter(self._cached)))
        if not self._watches.has_room(peer, more):
            raise Overloaded("too many partitions are waited for already: ask again later")
        self._hold(session, len(session.entries))

    def keep(self, session: ConsumerSession, correlation_id: int, forget_at: float) -> bool:
        """Keep a session whose fetch was answered. False if there is no room; then it is released."""
        self._forget(session.peer)
        try:
            self.require_room(session)
        except Overloaded:
            self.release(session)
            return False
        session.forget_at = forget_at
        self._cached[session.peer] = correlation_id, session
        return True

    def resume(self, peer: bytes, correlation_id: int) -> ConsumerSession | None:
        """Take the session kept after this fetch; the caller has to keep or release it later."""
        cached_id, session = self._cached.get(peer, (None, None))
        if cached_id != correlation_id:
            return None
        del self._cached[peer]
        return session

    def release(self, session: ConsumerSession) -> None:
        """End all of its watches: no fetch continues it."""
        session.forget(*session.entries)
        if session.held:
            self._hold(session, 0)

    def expire(self, now: float) -> None:
        """Release the sessions that no fetch has continued in time."""
        while self._cached:
            peer, (_, session) = next(iter(self._cached.items()))
            if session.forget_at > now:
                break
            self._forget(peer)

    def _hold(self, session: ConsumerSession, watches: int) -> None:
        self._watches.adjust(session.peer, watches - session.held)
        session.held = watches

    def _forget(self, peer: bytes) -> None:
        _, session = self._cached.pop(peer, (0, None))
        if session is not None:
            self.release(session)
