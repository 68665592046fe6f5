"""Whether ZooKeeper and the application are still there, by the times at which they were heard of.

**ZooKeeper.** The session cannot have ended before the last answered operation was *sent*, plus its
timeout. A member stops well before that (`fenced`), and sends a sign of life often enough.

**The application.** If it does not ask for records for `limit` seconds, it is asked to let go of what
it has; if it is not back when its revoke timeout has passed as well, the member goes away, and comes
back when the application does. Pure.
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How patient a member is. In seconds, but for counts and shares."""

    debounce: float = 0.1
    """The eldest waits this long (times 0.5 to 1.5) for more changes before it reads what has changed."""
    debounce_limit: float = 2.0
    """However many changes come, a plan is not put off for longer than this …"""
    debounce_per_change: float = 0.01
    """… and this for each of them."""
    spread_per_member: float = 0.002
    """In a large group who is not told of a plan reads it within this for each member …"""
    spread_limit: float = 2.0
    """… and this at most, and not before a quarter of it is over."""
    patience: float = 0.25
    """So long everybody waits before asking again for what was refused."""
    stuck: float = 30.0
    """A plan that takes longer raises an alarm: the assignor may not return, and no other member plans."""
    retry: float = 7.0
    """The pause after what cannot be helped soon: an offset that cannot be read, a plan that does not fit."""
    steal_margin: float = 0.5
    """Beyond the owner's own revoke timeout, before its partition is stolen."""
    heartbeats: float = 2.75
    """So many signs of life in each session timeout; each reads something that a lost watch may hide."""
    verifications: int = 20
    """Within so many signs of life each owned partition is looked after once."""
    trust: float = 2 / 3
    """The part of the session timeout without an answer after which nothing is held any more."""


class PollState(Enum):
    """How often the application asks for records."""

    ACTIVE = "active"
    LATE = "late"
    EXPIRED = "expired"


class Liveness:
    """What one member knows of both; times are of the shell's clock."""

    def __init__(self, timing: Timing, limit: float | None, revoke_timeout: float) -> None:
        self.fenced = False
        """Nothing may be held: ZooKeeper has been silent for too long."""
        self.poll_state = PollState.ACTIVE
        self._timing = timing
        self._limit = limit
        self._revoke_timeout = revoke_timeout
        self.fence_at = float("inf")
        """When it has been, if nothing more is heard."""
        self.polled_at: float | None = None
        """When the application last asked for records."""
        self._session_timeout = 0.0
        self.acknowledged_at = 0.0
        """When what was answered last was sent; 0: nothing yet in this session."""
        self._heartbeat_at: float | None = None
        self._sent_at: float | None = None

    # -- ZooKeeper --------------------------------------------------------------------------------

    def began(self, session_timeout: float) -> None:
        """A session is open. What was answered in it already is counted anew, by its timeout."""
        self._session_timeout = session_timeout
        self.acknowledged_at, self.fence_at = 0.0, float("inf")

    def forget(self) -> None:
        """The session is over, and what was doubtful in it is no more."""
        self._heartbeat_at = self._sent_at = None
        self.acknowledged_at, self.fenced, self.fence_at = 0.0, False, float("inf")

    def joined(self, now: float, share: float) -> None:
        """Whoever made us join is there. The first sign of life comes after this share of the usual time,
        so that a crowd that joins together does not ask together for ever."""
        self._heartbeat_at = now + share * self._session_timeout / self._timing.heartbeats
        self.polled_at = now if self.polled_at is None else self.polled_at

    def acknowledged(self, sent_at: float, now: float) -> bool:
        """ZooKeeper answered what was sent then, later than all before. True if that ends a silence."""
        self.acknowledged_at = sent_at
        self.fence_at = sent_at + self._session_timeout * self._timing.trust
        ends = self.fenced and now < self.fence_at
        self.fenced = self.fenced and not ends
        return ends

    def asks(self, now: float) -> bool:
        """Whether to send a sign of life now; none is sent while the last one waits for an answer."""
        if self._heartbeat_at is None or now < self._heartbeat_at:
            return False
        self._heartbeat_at = now + self._session_timeout / self._timing.heartbeats
        if self._sent_at is not None and self.acknowledged_at < self._sent_at:
            return False
        self._sent_at = now
        return True

    def deadline(self) -> float | None:
        """When a sign of life is due, or the lack of one counts."""
        fence_at = float("inf") if self.fenced else self.fence_at
        due = min(fence_at, float("inf") if self._heartbeat_at is None else self._heartbeat_at)
        return due if due < float("inf") else None

    # -- the application --------------------------------------------------------------------------

    def polled(self, at: float) -> PollState:
        """The application asked for records at that time; how it was until then."""
        before, self.polled_at = self.poll_state, at
        self.poll_state = PollState.ACTIVE
        return before

    def misses(self, now: float) -> PollState | None:
        """How the application is from now on, if that is something else than before."""
        due = self.absence_at()
        if due is None or now < due:
            return None
        was_active = self.poll_state is PollState.ACTIVE
        self.poll_state = PollState.LATE if was_active else PollState.EXPIRED
        return self.poll_state

    def absence_at(self) -> float | None:
        """When `misses` has something to say next, if the application does not come before."""
        if self._limit is None or self.polled_at is None or self.poll_state is PollState.EXPIRED:
            return None
        late = self.polled_at + self._limit
        return late if self.poll_state is PollState.ACTIVE else late + self._revoke_timeout
