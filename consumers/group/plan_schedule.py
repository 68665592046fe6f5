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

The leader measures the absence of a static member from when it saw the member leave. No clocks are
compared; a new leader measures anew.
"""

from collections.abc import Mapping
from math import inf
from random import Random
from typing import Final

from folkmoot.consumers.group.liveness import Timing
from folkmoot.coordination.groups import membership
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import Plan, TopicBasis
from folkmoot.coordination.groups.planning import NOTIFY_FROM, VersionedPlan

NO_PLAN: Final = VersionedPlan(Plan(), -1)
_CROWD: Final = 4  # changes that double the debounce
_MAX_WAITS: Final = 5


class PlanSchedule:
    """A member's knowledge of its group, since it joined, and when to plan."""

    def __init__(self, info: MemberInfo, timing: Timing, random: Random) -> None:
        self.plan = NO_PLAN
        self.names: tuple[str, ...] | None = None
        """The live members, oldest first; None before the first read."""
        self.topics: Mapping[str, TopicBasis] | None = None
        """The existing topics that the group wants; None where unknown. Only the leader reads them."""
        self.is_leader = False
        self.is_current = False
        """The last plan does not show that `names` are outdated."""
        self.read_at = inf
        """When to read changed members or topics."""
        self._info = info
        self._timing = timing
        self._random = random
        self._assignees: Mapping[str, str] = {}
        self._away: dict[
            str, float
        ] = {}  # absent static members, with when the leader saw them leave
        self._changes = 0  # since the last look
        self._all_changes = 0  # since the plan became due
        self._started_at: float | None = None  # when the plan under way was started
        self._is_unseen = False  # we tried to plan, and have not read the plan since
        self._awaited = NO_PLAN.version  # the version to read before we plan again: we wrote it
        self._due_since: float | None = None  # when the plan became due
        self._plan_at = inf  # when we plan
        self._rejoin_ends = inf

    def older(self, name: str) -> str:
        """Return the next older member; "" for the leader."""
        names = self.names or ()
        rank = names.index(name) if name in names else 0
        return names[rank - 1] if rank else ""

    # -- reads ------------------------------------------------------------------------------------

    def changed(self, now: float) -> None:
        """Members or topics have changed: read them after the debounce."""
        if self.read_at == inf:
            self.read_at = now + self._debounce()

    def update_plan(self, newer: VersionedPlan) -> None:
        """Take a newer plan. Static members that it does not count as absent were back: their next
        absence begins anew."""
        if self.topics is not None and _subscriptions_of(newer.plan) != _subscriptions_of(
            self.plan.plan
        ):
            self.topics = None  # they were read for other subscriptions
        self._is_unseen = False
        if self.plan is not NO_PLAN:
            known = self._assignees.keys() | self._away.keys()
            self.is_current = known >= set(newer.plan.members)
        self.plan = newer
        for name, member in newer.plan.static.items():
            if not member.absent:
                self._away.pop(name, None)

    def update_members(self, names: tuple[str, ...], name: str) -> None:
        """Take the live members; `name` is ours."""
        self._changes += len(set(names).symmetric_difference(self.names or ()))
        self.names, self.is_current = names, True
        self._assignees = membership.assignees(names)
        self.is_leader = names[:1] == (name,)
        for assignee in self._assignees:  # `begin` may come before the next `consider`
            self._away.pop(assignee, None)

    def update_topics(self, topics: Mapping[str, TopicBasis]) -> None:
        self._changes += topics != self.topics
        self.topics = topics

    def spread(self) -> float:
        """Return within how many seconds to read a new plan; 0: at once.

        The leader, members without a plan and small groups read at once.
        """
        members = len(self.plan.plan.members)
        if self.is_leader or members <= NOTIFY_FROM:
            return 0.0
        return min(members * self._timing.spread_per_member, self._timing.spread_limit)

    # -- when to plan -----------------------------------------------------------------------------

    def consider(self, name: str, now: float) -> None:
        """Set, postpone or cancel the time to plan; `name` is ours."""
        plan = self.plan.plan
        self._away = {  # other members look too seldom to know
            assignee: self._away.get(assignee, now)
            for assignee in plan.static
            if self.is_leader and assignee not in self._assignees
        }
        ends = [
            since + plan.static[assignee].rejoin_timeout for assignee, since in self._away.items()
        ]
        self._rejoin_ends = min((end for end in ends if end > now), default=inf)
        planned = plan.subscriptions.get(membership.assignee(name))
        is_due = planned is not None and planned != self._info.subscription()
        is_due |= self.is_leader and self.is_current and self._is_due(plan, now)
        is_newer = plan.protocol > self._info.protocol and not self.is_leader
        if not (is_due or is_newer):
            self._plan_at, self._due_since = inf, None
            self._changes = self._all_changes = 0
            self._is_unseen = False
        elif self._started_at is not None or self.plan.version < self._awaited:
            pass  # our plan is under way, or to be read
        elif self._plan_at == inf or self._changes:
            is_first = self._due_since is None and not self._is_unseen
            self._due_since = now if self._due_since is None else self._due_since
            self._all_changes += self._changes
            if is_due:
                self._plan_at = self._time_to_plan(now, is_first)
            elif self._plan_at == inf:
                self._plan_at = now + self._timing.debounce_limit
            self._changes = 0

    def _time_to_plan(self, now: float, is_first: bool) -> float:
        """A first single change was debounced when it was read; many changes wait for more."""
        if is_first and self._changes < _CROWD and self.plan.plan.members:
            return now
        return min(now + self._debounce(), max(now, self._limit()))

    def _limit(self) -> float:
        limit = self._timing.debounce_limit + self._timing.debounce_per_change * self._all_changes
        return (self._due_since or 0.0) + limit

    def _debounce(self) -> float:
        waits = min(_MAX_WAITS, 1 + self._changes / _CROWD)
        return self._timing.debounce * waits * self._random.uniform(0.5, 1.5)

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
            self._plan_at = min(self._limit(), max(now, self.read_at) + self._timing.patience)
            return None
        self._plan_at = inf
        self._started_at = now
        self._awaited = self.plan.version + 1
        return tuple(sorted(self._expired(now)))

    def ended(self, result: object, now: float) -> None:
        """The plan was written (True), superseded (False), or failed: then retry after a pause."""
        self._started_at = None
        self._is_unseen = True
        self._due_since = None
        if result is not True:
            self._awaited = NO_PLAN.version
        if not isinstance(result, bool):
            self._due_since = now
            self._plan_at = now + self._timing.retry

    def is_stuck(self, now: float) -> bool:
        return self._started_at is not None and now >= self._started_at + self._timing.stuck

    def forget_absences(self) -> None:
        """After a silence, forget absences and the time to plan: both may be outdated."""
        self._away.clear()
        self._plan_at, self._due_since, self._rejoin_ends = inf, None, inf

    def _is_due(self, plan: Plan, now: float) -> bool:
        expected = self._assignees.keys() | (self._away.keys() - self._expired(now))
        if expected != set(plan.members):
            return True
        if any(member.absent and name in self._assignees for name, member in plan.static.items()):
            return True
        return self.topics is not None and self.topics != plan.topics

    def _expired(self, now: float) -> set[str]:
        static = self.plan.plan.static
        return {
            assignee
            for assignee, since in self._away.items()
            if assignee not in static or now >= since + static[assignee].rejoin_timeout
        }


def _subscriptions_of(plan: Plan) -> set[tuple[tuple[str, ...], str]]:
    return {
        (subscription.topics, subscription.pattern) for subscription in plan.subscriptions.values()
    }
