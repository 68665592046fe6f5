"""Whether the group needs a new plan, and when this member makes it. Pure.

A plan is due in these cases:

- Its members differ from the current ones: the live ones, and static ones within their rejoin timeout.
- An absent static member is back.
- A topic that the group wants differs from the planned one.
- The plan was made for another subscription than this member now publishes.

The leader (the oldest member) plans, and it alone watches all members and topics. It waits for a moment
before it reads changes, longer while many come: so 1,000 members that start together cost a few plans,
and one that leaves costs no time. Each other member watches the next older one, and so knows when it
becomes the leader. Other members plan in two cases, which the leader cannot see if they took the place of
an earlier process with the same instance id: at once if the plan was made for another subscription, and
after `debounce_limit` if the plan has a newer protocol than they know.
"""

from math import inf
from random import Random
from typing import Final

from folkmoot.consumers.group.group_view import NO_PLAN, GroupView
from folkmoot.consumers.group.liveness import Timing
from folkmoot.coordination.groups.planning import NOTIFY_FROM, VersionedPlan

_CROWD: Final = 4  # changes that double the debounce
_MAX_WAITS: Final = 5


class PlanSchedule:
    """When a member reads its group, and when it plans, by its view of the group."""

    def __init__(self, view: GroupView, timing: Timing, random: Random) -> None:
        self.view = view
        self.timing = timing
        self.random = random
        self.error = ""
        """Why the last plan could not be written."""
        self.read_at = inf
        """When to read changed members or topics."""
        self._all_changes = 0  # since the plan became due
        self._started_at: float | None = None  # when the plan under way was started
        self._tried: VersionedPlan | None = None  # the plan when we last tried to write another
        self._awaited = NO_PLAN.version  # the version to read before we plan again: we wrote it
        self._due_since: float | None = None  # when the plan became due
        self._plan_at = inf  # when we plan
        self._rejoin_ends = inf

    # -- reads ------------------------------------------------------------------------------------

    def changed(self, now: float) -> None:
        """Members or topics have changed: read them after the debounce."""
        if self.read_at == inf:
            self.read_at = now + self._debounce()

    def spread(self) -> float:
        """Return within how many seconds to read a new plan; 0: at once.

        The leader, members without a plan and small groups read at once.
        """
        members = len(self.view.plan.plan.members)
        if self.view.is_leader or members <= NOTIFY_FROM:
            return 0.0
        return min(members * self.timing.spread_per_member, self.timing.spread_limit)

    # -- when to plan -----------------------------------------------------------------------------

    def consider(self, now: float) -> None:
        """Set, postpone or cancel the time to plan."""
        view = self.view
        self._rejoin_ends = view.note_absences(now)
        is_due = view.is_planned_otherwise() or (
            view.is_leader and view.is_current and view.is_plan_outdated(now)
        )
        is_newer = view.plan.plan.protocol > view.info.protocol and not view.is_leader
        if not (is_due or is_newer):
            self._plan_at, self._due_since, self._tried = inf, None, None
            view.changes = self._all_changes = 0
        elif self._started_at is not None or view.plan.version < self._awaited:
            pass  # our plan is under way, or to be read
        elif self._plan_at == inf or view.changes:
            is_first = self._due_since is None and self._tried is not view.plan
            self._due_since = now if self._due_since is None else self._due_since
            self._all_changes += view.changes
            if is_due:
                self._plan_at = self._time_to_plan(now, is_first)
            elif self._plan_at == inf:
                self._plan_at = now + self.timing.debounce_limit
            view.changes = 0

    def _time_to_plan(self, now: float, is_first: bool) -> float:
        """A first single change was debounced when it was read; many changes wait for more."""
        if is_first and self.view.changes < _CROWD and self.view.plan.plan.members:
            return now
        return min(now + self._debounce(), max(now, self._limit()))

    def _limit(self) -> float:
        limit = self.timing.debounce_limit + self.timing.debounce_per_change * self._all_changes
        return (self._due_since or 0.0) + limit

    def _debounce(self) -> float:
        waits = min(_MAX_WAITS, 1 + self.view.changes / _CROWD)
        return self.timing.debounce * waits * self.random.uniform(0.5, 1.5)

    def deadline(self) -> float:
        """When `begin` or `consider` can act, or a read is due."""
        return min(self._plan_at, self._rejoin_ends, self.read_at)

    def begin(self, now: float) -> tuple[str, ...] | None:
        """Begin a plan if it is time and no read comes first.

        Return the static members whose rejoin timeout is over; None: do not plan now.
        """
        if now < self._plan_at:
            return None
        if self.read_at < inf and now < self._limit():
            self._plan_at = min(self._limit(), max(now, self.read_at) + self.timing.patience)
            return None
        self._plan_at = inf
        self._started_at = now
        self._awaited = self.view.plan.version + 1
        return tuple(sorted(self.view.expired(now)))

    def ended(self, result: object, now: float) -> None:
        """The plan was written (True), superseded (False), or failed: then retry after a pause."""
        self._started_at = None
        self._tried = self.view.plan
        self._due_since = None
        self.error = ""
        if result is not True:
            self._awaited = NO_PLAN.version
        if not isinstance(result, bool):
            self.error = f"no plan: {result}"
            self._due_since = now
            self._plan_at = now + self.timing.retry

    def is_stuck(self, now: float) -> bool:
        return self._started_at is not None and now >= self._started_at + self.timing.stuck

    def forget_time(self) -> None:
        """After a silence, forget absences and the time to plan: both may be outdated."""
        self.view.forget_absences()
        self._plan_at, self._due_since, self._rejoin_ends = inf, None, inf
