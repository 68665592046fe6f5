"""Whether the group's next plan is due, and when it is this member's turn to make it.

A plan is due when the seats that it was made for are not those of the moment (taken now, or empty for
no longer than their grace), when one who was waited for is back, when a topic that this member wants
is not the one planned, or when the plan was made for something else than this member now publishes.

The oldest member plans; each younger one waits a moment longer and plans only if the plan is still
due. Every further change puts the plan off a little, and the more come the more, so that a hundred
members that start together cost a few plans and one that leaves costs no time.

How long a seat has been empty each member measures for itself, from when it saw it empty: no clocks
are compared, and whoever joins meanwhile waits the whole grace in the worst case. Pure.
"""

from collections.abc import Mapping
from random import Random
from typing import Final

from folkmoot.consumers.group.events import MakePlan
from folkmoot.consumers.group.timing import Timing
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import Plan, TopicBasis, VersionedPlan
from folkmoot.coordination.zookeeper.operations import TooLarge

NO_PLAN: Final = VersionedPlan(Plan(), -1)
_CROWD: Final = 4  # changes that double the wait for more
_MOST_WAITS: Final = 5


class Planning:
    """What one incarnation of a member knows of its group, and the plan that follows from it."""

    def __init__(self, info: MemberInfo, timing: Timing, random: Random) -> None:
        self.plan = NO_PLAN
        self.seats: Mapping[str, str] | None = None
        """Who sits where, oldest first; None before it was read."""
        self.topics: Mapping[str, TopicBasis] | None = None
        """The topics that this member wants and that exist; None before they were read."""
        self._info = info
        self._timing = timing
        self._random = random
        self._empty: dict[str, float] = {}  # since when a seat that is kept has been seen empty
        self._changes = 0  # since the plan became due
        self._counted = 0  # of these, for which our turn was put off
        self._busy = False
        self._since: float | None = None  # when the plan became due
        self._at: float | None = None
        self._grace_at: float | None = None  # when the next empty seat's grace is over

    @property
    def is_informed(self) -> bool:
        """Everything was read once."""
        return self.seats is not None and self.topics is not None

    def saw_plan(self, found: VersionedPlan) -> None:
        """A newer plan. Whom it does not wait for was there when it was made: a new absence begins."""
        self.plan = found
        for seat, standing in found.plan.static.items():
            if not standing.absent:
                self._empty.pop(seat, None)

    def saw_members(self, names: tuple[str, ...]) -> None:
        seats = members.seats(names)
        if self.seats is not None and self.seats != seats:
            self._changes += 1
        self.seats = seats
        for seat in seats:  # our turn may come before `consider` looks
            self._empty.pop(seat, None)

    def saw_topics(self, topics: Mapping[str, TopicBasis]) -> None:
        if self.topics is not None and self.topics != topics:
            self._changes += 1
        self.topics = topics

    def consider(self, name: str, now: float) -> None:
        """Set, put off or cancel our turn."""
        if self.seats is None or self.topics is None:
            return
        plan, seat = self.plan.plan, members.seat(name)
        self._empty = {
            each: self._empty.get(each, now) for each in plan.static if each not in self.seats
        }
        ends = [since + plan.static[each].grace for each, since in self._empty.items()]
        self._grace_at = min((end for end in ends if end > now), default=None)
        about_us = self._is_misunderstood(plan, seat)
        if not (about_us or self._is_due(plan, self.seats, self.topics, now)):
            self._at = self._since = None
            self._changes = self._counted = 0
        elif not self._busy and (self._at is None or self._changes > self._counted):
            if self._since is None:
                self._since, self._changes = now, 0
            self._counted = self._changes
            waits = min(_MOST_WAITS, 1 + self._changes / _CROWD)
            debounce = self._timing.debounce * waits * self._random.uniform(0.5, 1.5)
            turn = min(now + debounce, max(now, self._since + self._timing.debounce_limit))
            self._at = turn + self._rank(plan, name, about_us) * self._timing.patience

    def deadline(self) -> float | None:
        """When `begin` or `consider` has something to do, if nothing else happens."""
        return min((at for at in (self._at, self._grace_at) if at is not None), default=None)

    def begin(self, now: float) -> MakePlan | None:
        """The plan to be made now, if it is our turn."""
        if self._at is None or now < self._at:
            return None
        self._at = None
        self._busy = True
        return MakePlan(tuple(sorted(self._expired(now))), self.plan.identity)

    def ended(self, result: bool | TooLarge, now: float) -> None:
        """The plan was made, or not; one that is too large for its node is not tried again soon."""
        self._busy = False
        self._since = None
        if isinstance(result, TooLarge):
            self._since = now
            self._at = now + self._timing.sweep

    def doubt(self) -> None:
        """Nothing was heard for long: somebody may have been back meanwhile, and a plan may be made."""
        self._empty.clear()
        self._at = self._since = self._grace_at = None

    def forget(self) -> None:
        """The session is over."""
        self.plan = NO_PLAN
        self.seats = self.topics = None
        self._at = self._since = self._grace_at = None
        self._busy = False
        self._empty.clear()

    def _is_due(
        self,
        plan: Plan,
        seats: Mapping[str, str],
        topics: Mapping[str, TopicBasis],
        now: float,
    ) -> bool:
        expected = seats.keys() | (self._empty.keys() - self._expired(now))
        if expected != set(plan.members):
            return True
        if any(standing.absent and seat in seats for seat, standing in plan.static.items()):
            return True
        wanted = topics.keys() | {topic for topic in plan.topics if self._info.wants(topic)}
        return any(plan.topics.get(topic) != topics.get(topic) for topic in wanted)

    def _is_misunderstood(self, plan: Plan, seat: str) -> bool:
        """The plan was made for what an earlier holder of our seat had published."""
        standing = plan.static.get(seat)
        if seat not in plan.members or standing is None or standing.absent:
            return False
        return (standing.grace, standing.wish) != (self._info.grace, self._info.wish())

    def _rank(self, plan: Plan, name: str, about_us: bool) -> int:
        """How many are to plan before us; what only we can know is ours, what we cannot is theirs."""
        assert self.seats is not None
        if about_us:
            return 0
        if plan.protocol > self._info.protocol:
            return len(self.seats)
        names = list(self.seats.values())
        return names.index(name) if name in names else 0

    def _expired(self, now: float) -> set[str]:
        static = self.plan.plan.static
        return {
            seat
            for seat, since in self._empty.items()
            if seat not in static or now >= since + static[seat].grace
        }
