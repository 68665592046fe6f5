"""Whether ZooKeeper and the application are still there, by the times at which they were heard of.

**ZooKeeper.** The session cannot have ended before the last answered operation was *sent*, plus its
timeout. A member stops well before that (`fenced`), and sends a sign of life often enough.

**The application.** If it does not ask for records for `limit` seconds, it is asked to let go of what
it has; if it is not back when its hand-over time has passed as well, the member goes away, and comes
back when the application does. Pure.
"""

from enum import Enum

from folkmoot.consumers.group.timing import Timing


class Presence(Enum):
    """How the application is."""

    THERE = "there"
    LATE = "late"
    GONE = "gone"


class Liveness:
    """What one member knows of both; times are of the shell's clock."""

    def __init__(self, timing: Timing, limit: float | None, hand_over: float) -> None:
        self.fenced = False
        """Nothing may be held: ZooKeeper has been silent for too long."""
        self.presence = Presence.THERE
        self._timing = timing
        self._limit = limit
        self._hand_over = hand_over
        self._session_timeout = 0.0
        self._fence_at: float | None = None
        self._heartbeat_at: float | None = None
        self._asking = False
        self._polled_at: float | None = None

    # -- ZooKeeper --------------------------------------------------------------------------------

    def began(self, session_timeout: float) -> None:
        """A session is open."""
        self._session_timeout = session_timeout

    def forget(self) -> None:
        """The session is over, and what was doubtful in it is no more."""
        self._fence_at = self._heartbeat_at = None
        self._asking = self.fenced = False

    def joined(self, now: float) -> None:
        """Whoever made us join is there."""
        self._heartbeat_at = now
        self._polled_at = now if self._polled_at is None else self._polled_at

    def acknowledged(self, sent_at: float) -> None:
        self._fence_at = sent_at + self._session_timeout * self._timing.trust

    def falls_silent(self, now: float) -> bool:
        """True once, when ZooKeeper has been silent for too long."""
        if self._fence_at is None or now < self._fence_at:
            return False
        self._fence_at = None
        self.fenced = True
        return True

    def asks(self, now: float) -> bool:
        """Whether to ask for a sign of life now; no other is asked for before it is `answered`."""
        if self._heartbeat_at is None or now < self._heartbeat_at:
            return False
        self._heartbeat_at = now + self._session_timeout / self._timing.heartbeats
        if self._asking:
            return False
        self._asking = True
        return True

    def answered(self) -> None:
        self._asking = False

    def deadline(self) -> float | None:
        """When a sign of life is due, or the lack of one counts."""
        times = (self._fence_at, self._heartbeat_at)
        return min((at for at in times if at is not None), default=None)

    # -- the application --------------------------------------------------------------------------

    def polled(self, at: float) -> Presence:
        """The application asked for records at that time; how it was until then."""
        before, self._polled_at = self.presence, at
        self.presence = Presence.THERE
        return before

    def misses(self, now: float) -> Presence | None:
        """How the application is from now on, if that is something else than before."""
        due = self.absence_at()
        if due is None or now < due:
            return None
        self.presence = Presence.LATE if self.presence is Presence.THERE else Presence.GONE
        return self.presence

    def absence_at(self) -> float | None:
        """When `misses` has something to say next, if the application does not come before."""
        if self._limit is None or self._polled_at is None or self.presence is Presence.GONE:
            return None
        late = self._polled_at + self._limit
        return late if self.presence is Presence.THERE else late + self._hand_over
