"""What a member knows of its group since it joined. Pure."""

from collections.abc import Mapping
from math import inf
from typing import Final

from folkmoot.coordination.groups import membership
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import Plan, TopicBasis
from folkmoot.coordination.groups.planning import VersionedPlan

NO_PLAN: Final = VersionedPlan(Plan(), -1)


class GroupView:
    """The plan, the members and the topics, by their last reads. `info` is what this member publishes.

    The leader measures the absence of a static member from when it saw the member leave. No clocks are
    compared; a new leader measures anew.
    """

    def __init__(self, info: MemberInfo, name: str = "") -> None:
        self.info = info
        self.name = name
        """This member's; "" before it joined."""
        self.plan = NO_PLAN
        self.missing: tuple[str, ...] = ()
        """Wanted topics that did not exist for the plan; a pattern without a match is between slashes.
        Replaced as a whole."""
        self.names: tuple[str, ...] | None = None
        """The live members, oldest first; None before the first read."""
        self.topics: Mapping[str, TopicBasis] | None = None
        """The existing topics that the group wants; None where unknown. Only the leader reads them."""
        self.is_leader = False
        self.is_current = False
        """The last plan does not show that `names` are outdated."""
        self.changes = 0
        """Changed members and topics; whoever acts on them sets it back."""
        self.published: dict[str, MemberInfo] = {}
        """The known members, for planning."""
        self._assignees: Mapping[str, str] = {}
        self._away: dict[str, float] = {}
        """Absent static members, with when the leader saw them leave."""

    @property
    def is_without_topics(self) -> bool:
        """Return whether none of the wanted topics exists."""
        wanted = len(self.info.topics) + bool(self.info.pattern)
        return 0 < wanted == len(self.missing)

    def older(self) -> str:
        """Return the next older member; "" for the leader."""
        names = self.names or ()
        rank = names.index(self.name) if self.name in names else 0
        return names[rank - 1] if rank else ""

    def update_plan(self, newer: VersionedPlan) -> None:
        """Take a newer plan. Static members that it does not count as absent were back: their next
        absence begins anew."""
        plan = newer.plan
        if self.topics is not None and _subscriptions_of(plan) != _subscriptions_of(self.plan.plan):
            self.topics = None  # they were read for other subscriptions
        if self.plan is not NO_PLAN:
            self.is_current = self._assignees.keys() | self._away.keys() >= set(plan.members)
        self.plan = newer
        wanted = plan.subscriptions.get(membership.assignee(self.name))
        self.missing = () if wanted is None else wanted.unmet_by(plan.topics)
        for name, member in plan.static.items():
            if not member.absent:
                self._away.pop(name, None)

    def update_members(self, names: tuple[str, ...]) -> None:
        self.changes += len(set(names).symmetric_difference(self.names or ()))
        self.names, self.is_current = names, True
        self._assignees = membership.assignees(names)
        self.is_leader = names[:1] == (self.name,)
        for assignee in self._assignees:  # a plan may begin before the next `note_absences`
            self._away.pop(assignee, None)

    def update_topics(self, topics: Mapping[str, TopicBasis]) -> None:
        self.changes += topics != self.topics
        self.topics = topics

    # -- what a plan needs ------------------------------------------------------------------------

    def is_plan_outdated(self, now: float) -> bool:
        """Return whether the leader sees other members or topics than the plan."""
        plan = self.plan.plan
        expected = self._assignees.keys() | (self._away.keys() - self.expired(now))
        if expected != set(plan.members):
            return True
        if any(member.absent and name in self._assignees for name, member in plan.static.items()):
            return True
        return self.topics is not None and self.topics != plan.topics

    def is_planned_otherwise(self) -> bool:
        """Return whether the plan was made for another subscription than this member publishes."""
        planned = self.plan.plan.subscriptions.get(membership.assignee(self.name))
        return planned is not None and planned != self.info.subscription()

    def note_absences(self, now: float) -> float:
        """Note which static members are absent, and return when the next rejoin timeout ends."""
        static = self.plan.plan.static
        self._away = {  # other members look too seldom to know
            assignee: self._away.get(assignee, now)
            for assignee in static
            if self.is_leader and assignee not in self._assignees
        }
        ends = [since + static[assignee].rejoin_timeout for assignee, since in self._away.items()]
        return min((end for end in ends if end > now), default=inf)

    def forget_absences(self) -> None:
        """After a silence: they may be outdated."""
        self._away.clear()

    def expired(self, now: float) -> set[str]:
        """Return the static members whose rejoin timeout is over."""
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
