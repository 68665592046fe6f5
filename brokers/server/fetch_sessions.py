"""What one fetch leaves out is kept for its client's next fetch, so that a fetch costs what has changed.

```
7: fetch a b c, keep ─► waits ─ append to b ─► answer: b; kept are a and c, still watched
8: fetch b, after 7, keep ─► waits on a, b and c
```
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from folkmoot.protocol.messages import FetchEntry

MAX_WATCHES: Final = 100_000
MAX_WATCHES_PER_PEER: Final = 30_000

PartitionKey = tuple[str, int]
"""A topic's name and a partition's number."""

_NO_PARTITIONS: Final[dict[int, dict["FetchSession", None]]] = {}


class Quota:
    """A bound for each peer, and one for all of them together."""

    def __init__(self, per_peer: int, in_all: int) -> None:
        self._per_peer = per_peer
        self._in_all = in_all
        self._held: dict[bytes, int] = {}
        self._total = 0

    def has_room(self, peer: bytes, amount: int) -> bool:
        return self._held.get(peer, 0) + amount <= self._per_peer and self.has_room_in_all(amount)

    def has_room_in_all(self, amount: int) -> bool:
        return self._total + amount <= self._in_all

    def take(self, peer: bytes, amount: int, *, within: bool = True) -> bool:
        """False, and nothing is taken, where that would be too much; unless it has begun already."""
        room = not within or self.has_room(peer, amount)
        if room and amount:
            self._held[peer] = self._held.get(peer, 0) + amount
            self._total += amount
        return room

    def give_back(self, peer: bytes, amount: int) -> None:
        if amount:
            self._total -= amount
            self._held[peer] -= amount
            if not self._held[peer]:
                del self._held[peer]


class FetchSession:
    """What one fetch, and those that go on with it, want to know of, a partition after the other.

    `entries` were asked for at the end of their logs; `changed` are those partitions, the first one
    first, with which something has happened since they were looked at: of the others there is nothing
    to tell. While it waits, `missing` bytes on its partitions complete it.
    """

    __slots__ = (
        *("begun", "changed", "entries", "forget_at", "missing", "peer", "unwatched", "waits"),
        "watched",
    )

    def __init__(self, peer: bytes, begun: float) -> None:
        self.peer = peer
        self.begun = begun
        self.entries: dict[PartitionKey, FetchEntry] = {}
        self.changed: dict[PartitionKey, None] = {}
        self.watched: set[PartitionKey] = set()
        self.unwatched: list[PartitionKey] = []
        self.waits = False
        self.missing = 0
        self.forget_at = inf

    def name(self, entries: Iterable[FetchEntry]) -> None:
        """Want to know of these as well; they go to the end of the line."""
        for entry in entries:
            partition = entry.topic, entry.partition
            self.entries.pop(partition, None)
            self.entries[partition] = entry
            if partition not in self.watched:
                self.unwatched.append(partition)

    def changed_entries(self) -> list[FetchEntry]:
        """Those of which there can be something to tell."""
        entries = self.entries
        return [entries[partition] for partition in self.changed if partition in entries]

    def told(self, partitions: Iterable[PartitionKey], left_out: Iterable[PartitionKey]) -> None:
        """All that changed was looked at: these were told of, and for those there was no room."""
        for partition in partitions:
            self.entries.pop(partition, None)
        self.changed = {each: None for each in left_out if each in self.entries}


class FetchSessions:
    """Sessions, found by the partitions that they watch, never by looking at all of them.

    A session that was answered is either kept (`keep`) until its client goes on with it (`resume`), or
    let go (`release`). It belongs to one connection, which has one at a time, and is gone on with once.
    What is kept costs the next fetch nothing for all those partitions with which nothing happens.

    Bounded: the sessions of one peer, and those of all together, watch a limited number of partitions.
    What is kept goes when it is too old, and when room is needed: the peer's own first, then the
    oldest. Owner: the event loop. `complete` is called with a waiting session that has enough.
    """

    def __init__(
        self, complete: Callable[[FetchSession], None], watches: Quota | None = None
    ) -> None:
        self._complete = complete
        self._watches = watches or Quota(MAX_WATCHES_PER_PEER, MAX_WATCHES)
        self._watching: dict[str, dict[int, dict[FetchSession, None]]] = {}
        self._kept: dict[bytes, tuple[int, FetchSession]] = {}

    def watch(self, session: FetchSession) -> bool:
        """Note what happens to all that it has named. False if there is no room."""
        if not session.unwatched:
            return True
        new = dict.fromkeys(each for each in session.unwatched if each not in session.watched)
        session.unwatched = []
        if not self._watches.has_room(session.peer, len(new)):
            self._forget(session.peer)
        while self._kept and not self._watches.has_room_in_all(len(new)):
            self._forget(next(iter(self._kept)))
        if not self._watches.take(session.peer, len(new)):
            return False
        session.watched.update(new)
        for topic, number in new:
            self._watching.setdefault(topic, {}).setdefault(number, {})[session] = None
        return True

    def keep(self, session: FetchSession, correlation_id: int, forget_at: float) -> bool:
        """Keep what is left of a fetch that was answered. False if there is no room; it is let go."""
        self._forget(session.peer)
        if not self.watch(session):
            self.release(session)
            return False
        session.forget_at = forget_at
        self._kept[session.peer] = correlation_id, session
        return True

    def resume(self, peer: bytes, correlation_id: int) -> FetchSession | None:
        """What was kept of this fetch; the caller has to keep or release it, now or after a wait."""
        kept, session = self._kept.get(peer, (None, None))
        if kept != correlation_id:
            return None
        del self._kept[peer]
        return session

    def release(self, session: FetchSession) -> None:
        """Nobody goes on with this one."""
        for topic, number in session.watched:
            partitions = self._watching[topic]
            del partitions[number][session]
            if not partitions[number]:
                del partitions[number]
                if not partitions:
                    del self._watching[topic]
        self._watches.give_back(session.peer, len(session.watched))
        session.watched.clear()

    def appended(self, partition: PartitionKey, length: int) -> None:
        """Bytes that can be read came to a partition."""
        for session in self._sessions_of(partition):
            if partition in session.entries:
                session.changed[partition] = None
                session.missing -= length
                if session.waits and session.missing <= 0:
                    self._complete(session)

    def changed(self, partition: PartitionKey) -> None:
        """Something other than an append happened to a partition: who waits on it is told at once."""
        for session in self._sessions_of(partition):
            if partition in session.entries:
                session.changed[partition] = None
                if session.waits:
                    self._complete(session)

    def topic_changed(self, topic: str) -> None:
        """A topic is another one now, or gone."""
        for number in list(self._watching.get(topic, ())):
            self.changed((topic, number))

    def _sessions_of(self, partition: PartitionKey) -> Iterable[FetchSession]:
        topic, number = partition
        return self._watching.get(topic, _NO_PARTITIONS).get(number, ())

    def expire(self, now: float) -> None:
        """Forget what nobody has gone on with."""
        while self._kept:
            peer, (_, session) = next(iter(self._kept.items()))
            if session.forget_at > now:
                break
            self._forget(peer)

    def _forget(self, peer: bytes) -> None:
        _, session = self._kept.pop(peer, (0, None))
        if session is not None:
            self.release(session)
