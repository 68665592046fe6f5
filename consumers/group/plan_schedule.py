"""Whether the group's next plan is due, and when it is this member's turn to make it.

A plan is due when the members that it was made for are not those of the moment (there now, or away for
no longer than their rejoin timeout), when one who was waited for is back, when a topic that the group
wants is not the one planned, or when the plan was made for something else than this member now publishes.

The eldest member plans, and only it watches all members and topics: it waits for a moment before it reads
what has changed, longer while a crowd comes, so that a thousand members that start together cost a few
plans and reads, and one that leaves costs no time. Each younger member watches the next older one only,
and so knows when it has become the eldest. A younger member plans in two cases only, which the eldest may
not see where it took the place of an earlier process with its instance id. The plan was made for something
else than it publishes: it plans at once. Or the plan is of a newer kind than it understands: it plans when
the eldest has not done so for some seconds.

How long a static member has been away the eldest measures for itself, from when it saw it gone: no clocks
are compared, and who becomes the eldest meanwhile waits the whole time in the worst case. Pure.
"""

from collections.abc import Mapping
from random import Random
from typing import Final

from folkmoot.consumers.group.liveness import Timing
from folkmoot.coordination.groups import membership
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import Plan, TopicBasis
from folkmoot.coordination.groups.planning import TELL_FROM, VersionedPlan

NO_PLAN: Final = VersionedPlan(Plan(), -1)
_CROWD: Final = 4  # changes that double the wait for more
_MAX_WAITS: Final = 5
_LAST_RANK: Final = 20  # so patient is the youngest of a large group


class PlanSchedule:
    """What one incarnation of a member knows of its group, and the plan that follows from it."""

    def __init__(self, info: MemberInfo, timing: Timing, random: Random) -> None:
        self.plan = NO_PLAN
        self.names: tuple[str, ...] | None = None
        """Who is there, oldest first; None before it was read."""
        self.topics: Mapping[str, TopicBasis] | None = None
        """The topics that the group wants and that exist, if that is known: to the eldest only."""
        self.is_eldest = False
        self.is_current = False
        """The plan seen last does not show that `names` are old."""
        self.read_at: float | None = None
        """When to read what has changed: members or topics."""
        self._info = info
        self._timing = timing
        self._random = random
        self._assignees: Mapping[str, str] = {}
        self._away: dict[str, float] = {}  # since when the eldest sees that a static member is gone
        self._changes = 0  # since the last look
        self._all_changes = 0  # since the plan became due
        self._begun_at: float | None = None  # when the plan was begun that is being made
        self._is_unseen = False  # we planned, or tried to, and have not seen how it stands since
        self._is_written = False  # we have written a plan, and are about to read it
        self._began_under = NO_PLAN.version  # the plan's version when we last began with the next
        self._since: float | None = None  # when the plan became due
        self._at: float | None = None
        self._rejoin_ends: float | None = None

    @property
    def is_informed(self) -> bool:
        return self.names is not None

    def older(self, name: str) -> str:
        """The next older member; "" for the eldest."""
        names = self.names or ()
        place = names.index(name) if name in names else 0
        return names[place - 1] if place else ""

    # -- what was read ----------------------------------------------------------------------------

    def changed(self, now: float) -> None:
        """Members or topics have changed: they are read after a moment, in which more may come."""
        if self.read_at is None:
            self.read_at = now + self._debounce()

    def saw_plan(self, found: VersionedPlan) -> None:
        """A newer plan. Whom it does not wait for was there when it was made: a new absence begins."""
        if self.topics is not None and _wishes(found.plan) != _wishes(self.plan.plan):
            self.topics = None  # what was read was read for other wishes
        self._is_unseen = self._is_written = False
        if self.plan is not NO_PLAN:
            known = self._assignees.keys() | self._away.keys()
            self.is_current = known >= set(found.plan.members)
        self.plan = found
        for each, standing in found.plan.static.items():
            if not standing.absent:
                self._away.pop(each, None)

    def saw_members(self, names: tuple[str, ...], name: str) -> None:
        """Who is there; `name` is ours."""
        self._changes += len(set(names).symmetric_difference(self.names or ()))
        self.names, self.is_current = names, True
        self._assignees = membership.assignees(names)
        self.is_eldest = names[:1] == (name,)
        for each in self._assignees:  # our turn may come before `consider` looks
            self._away.pop(each, None)

    def saw_topics(self, topics: Mapping[str, TopicBasis]) -> None:
        self._changes += topics != self.topics
        self.topics = topics

    def spread(self) -> float:
        """Within how many seconds to read a plan of which everybody is told; 0: at once.

        Who plans, or has no plan yet, does not wait, nor does anybody in a small group.
        """
        members = len(self.plan.plan.members)
        if self.is_eldest or members <= TELL_FROM:
            return 0.0
        return min(members * self._timing.spread_per_member, self._timing.spread_limit)

    # -- our turn ---------------------------------------------------------------------------------

    def consider(self, name: str, now: float) -> None:
        """Set, put off or cancel our turn."""
        if self.names is None:
            return
        plan = self.plan.plan
        self._away = {  # a younger member looks too seldom to know
            each: self._away.get(each, now)
            for each in plan.static
            if self.is_eldest and each not in self._assignees
        }
        ends = [since + plan.static[each].rejoin_timeout for each, since in self._away.items()]
        self._rejoin_ends = min((end for end in ends if end > now), default=None)
        is_outdated = self.is_eldest and self.is_current and self._is_due(plan, now)
        is_due = is_outdated or self._is_misunderstood(plan, membership.assignee(name))
        is_foreign = plan.protocol > self._info.protocol and not self.is_eldest
        if not (is_due or is_foreign):
            self._at = self._since = None
            self._changes = self._all_changes = 0
            self._is_unseen = False
        elif (
            self._begun_at is None and not self._is_written and (self._at is None or self._changes)
        ):
            first = self._since is None and not self._is_unseen
            self._since = now if self._since is None else self._since
            self._all_changes += self._changes
            if is_due:
                self._at = self._next_turn(now, first)
            elif self._at is None:
                rank = min(self.names.index(name) if name in self.names else 0, _LAST_RANK)
                self._at = now + self._timing.debounce_limit + rank * self._timing.patience
            self._changes = 0

    def _next_turn(self, now: float, first: bool) -> float:
        """At once what one change has made due, since that was waited for; a crowd is waited for longer."""
        if first and self._changes < _CROWD and self.plan is not NO_PLAN and self.plan.plan.members:
            return now
        return min(now + self._debounce(), max(now, self._limit()))

    def _limit(self) -> float:
        """So long a plan can be put off."""
        limit = self._timing.debounce_limit + self._timing.debounce_per_change * self._all_changes
        return (self._since or 0.0) + limit

    def _debounce(self) -> float:
        waits = min(_MAX_WAITS, 1 + self._changes / _CROWD)
        return self._timing.debounce * waits * self._random.uniform(0.5, 1.5)

    def deadline(self) -> float | None:
        """When `begin` or `consider` has something to do, or something is to be read."""
        times = (self._at, self._rejoin_ends, self.read_at)
        return min((at for at in times if at is not None), default=None)

    def begin(self, now: float) -> tuple[str, ...] | None:
        """Whether to make a plan now: it is our turn, and nothing has changed that is to be read first.

        → the static members that were away for longer than their rejoin timeout.
        """
        if self._at is None or now < self._at:
            return None
        if self.read_at is not None and now < self._limit():
            self._at = min(self._limit(), max(now, self.read_at) + self._timing.patience)
            return None
        self._at = None
        self._begun_at = now
        self._began_under = self.plan.version
        return tuple(sorted(self._expired(now)))

    def ended(self, result: object, now: float) -> None:
        """The plan was made, or not; one that cannot be is not tried again soon."""
        self._begun_at = None
        self._is_unseen = True
        self._is_written = result is True and self.plan.version == self._began_under
        self._since = None
        if not isinstance(result, bool):
            self._since = now
            self._at = now + self._timing.retry

    def is_stuck(self, now: float) -> bool:
        """Whether a plan was begun and has not come about for long."""
        return self._begun_at is not None and now >= self._begun_at + self._timing.stuck

    def doubt(self) -> None:
        """Nothing was heard for long: somebody may have been back meanwhile, and a plan may be made."""
        self._away.clear()
        self._at = self._since = self._rejoin_ends = None

    def _is_due(self, plan: Plan, now: float) -> bool:
        expected = self._assignees.keys() | (self._away.keys() - self._expired(now))
        if expected != set(plan.members):
            return True
        if any(each.absent and name in self._assignees for name, each in plan.static.items()):
            return True
        return self.topics is not None and self.topics != plan.topics

    def _is_misunderstood(self, plan: Plan, assignee: str) -> bool:
        """The plan was made for what an earlier process with our instance id had published."""
        planned = plan.subscriptions.get(assignee)
        return planned is not None and planned != self._info.subscription()

    def _expired(self, now: float) -> set[str]:
        static = self.plan.plan.static
        return {
            each
            for each, since in self._away.items()
            if each not in static or now >= since + static[each].rejoin_timeout
        }


def _wishes(plan: Plan) -> set[tuple[tuple[str, ...], str]]:
    return {(each.topics, each.pattern) for each in plan.subscriptions.values()}
