"""Whether ZooKeeper and the application are alive, by the times of their last actions. Pure.

**ZooKeeper.** The session lives at least until the last answered operation was *sent*, plus its timeout.
A member stops well before that (`fenced`), and sends heartbeats often enough.

**The application.** If it does not poll for `limit` seconds, it must release its partitions. If it has not
polled after its revoke timeout either, the member leaves, and joins again with the next poll.
"""

from dataclasses import dataclass
from enum import Enum
from math import inf


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A member's waiting times, in seconds unless noted."""

    debounce: float = 0.1
    """The leader waits this long (times 0.5 to 1.5) for more changes before it reads them."""
    debounce_limit: float = 2.0
    """Changes postpone a plan for at most this long …"""
    debounce_per_change: float = 0.01
    """… and this for each change."""
    spread_per_member: float = 0.002
    """Members of a large group read a plan within this time per member …"""
    spread_limit: float = 2.0
    """… and this at most, and not before a quarter of it."""
    patience: float = 0.25
    """The pause before a refused request is sent again."""
    stuck: float = 30.0
    """A plan that takes longer raises an alarm: the assignor may not return."""
    retry: float = 7.0
    """The pause after lasting errors: an unreadable offset, a plan that is too large."""
    steal_margin: float = 0.5
    """Added to the owner's release timeout, before its partition is stolen."""
    heartbeats: float = 2.75
    """Heartbeats in each session timeout; each reads a node whose watch may be lost."""
    verifications: int = 20
    """Each owned partition is verified once in this many heartbeats."""
    trust: float = 2 / 3
    """The part of the session timeout without an answer after which nothing is held any more."""


class PollState(Enum):
    """How often the application polls."""

    ACTIVE = "active"
    LATE = "late"
    EXPIRED = "expired"


class Liveness:
    """One member's knowledge of both; times are of the member's clock."""

    def __init__(self, timing: Timing, limit: float | None, revoke_timeout: float) -> None:
        self.fenced = False
        """ZooKeeper has been silent for too long: nothing may be held."""
        self.poll_state = PollState.ACTIVE
        self.fence_at = inf
        """When silence fences the member."""
        self.polled_at: float | None = None
        self.acknowledged_at = 0.0
        """When the last answered operation was sent; 0: none in this session."""
        self._timing = timing
        self._limit = limit
        self._revoke_timeout = revoke_timeout
        self._session_timeout = 0.0
        self._heartbeat_at = inf
        self._sent_at = 0.0

    # -- ZooKeeper --------------------------------------------------------------------------------

    def began(self, session_timeout: float) -> None:
        """A session is open. Answers in it count from now on, by its timeout."""
        self._session_timeout = session_timeout
        self.acknowledged_at, self.fence_at = 0.0, inf

    def forget(self) -> None:
        self._heartbeat_at, self._sent_at = inf, 0.0
        self.acknowledged_at, self.fenced, self.fence_at = 0.0, False, inf

    def joined(self, now: float, fraction: float) -> None:
        """The member has joined. The first heartbeat comes after this fraction of the usual time, so that
        members that join together do not send heartbeats together."""
        self._heartbeat_at = now + fraction * self._session_timeout / self._timing.heartbeats
        self.polled_at = now if self.polled_at is None else self.polled_at

    def acknowledged(self, sent_at: float, now: float) -> bool:
        """ZooKeeper answered an operation of that time, the latest so far. True if it ends a silence."""
        self.acknowledged_at = sent_at
        self.fence_at = sent_at + self._session_timeout * self._timing.trust
        ends = self.fenced and now < self.fence_at
        self.fenced = self.fenced and not ends
        return ends

    def needs_heartbeat(self, now: float) -> bool:
        """Return whether to send a heartbeat now: not while the last one is unanswered."""
        if now < self._heartbeat_at:
            return False
        self._heartbeat_at = now + self._session_timeout / self._timing.heartbeats
        if self.acknowledged_at < self._sent_at:
            return False
        self._sent_at = now
        return True

    def deadline(self) -> float:
        """When the next heartbeat, or the fence, is due."""
        return min(inf if self.fenced else self.fence_at, self._heartbeat_at)

    # -- the application --------------------------------------------------------------------------

    def polled(self, at: float) -> PollState:
        """The application polled. Return its state before."""
        before, self.polled_at = self.poll_state, at
        self.poll_state = PollState.ACTIVE
        return before

    def misses(self, now: float) -> PollState | None:
        """Return the application's state if it has changed by now."""
        if now < self.absence_at():
            return None
        was_active = self.poll_state is PollState.ACTIVE
        self.poll_state = PollState.LATE if was_active else PollState.EXPIRED
        return self.poll_state

    def absence_at(self) -> float:
        """When `misses` changes the state, without another poll."""
        if self._limit is None or self.polled_at is None or self.poll_state is PollState.EXPIRED:
            return inf
        late = self.polled_at + self._limit
        return late if self.poll_state is PollState.ACTIVE else late + self._revoke_timeout
