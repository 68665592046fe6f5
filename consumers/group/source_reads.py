"""What a member reads of its group, and when it reads again. Pure: it appends effects."""

from collections.abc import Callable
from enum import Enum
from functools import partial
from math import inf
from typing import Any

from folkmoot.consumers.group.group_view import GroupView
from folkmoot.consumers.group.owned_partitions import Effect, Task
from folkmoot.coordination.groups import membership, planning
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback


class Source(Enum):
    """A thing that is read as a whole, and watched."""

    OWN = "own"
    """The own node, which others may remove."""
    OLDER = "older"
    """The node of the next older member."""
    MEMBERS = "members"
    PLAN = "plan"
    TOPICS = "topics"


class SourceReads:
    """The reads in flight since the member joined.

    A source is read once at a time, and again if it changes meanwhile. `done` takes the source, a node's
    name, whether it is watched, and the value.
    """

    def __init__(
        self,
        group: str,
        protocol: int,
        effects: list[Effect],
        watch: Callable[[Source], WatchCallback],
        done: Callable[[Source, str, bool, object], None],
    ) -> None:
        self.plan_at = inf
        """When to read a newer plan, in a large group."""
        self.is_notified = False
        """Our node was written: the next plan changes our share."""
        self._group = group
        self._protocol = protocol
        self._effects = effects
        self._watch = watch
        self._done = done
        self._reading: dict[Source, bool] = {}  # value: it has changed since the read began
        self._turn = 0

    def __contains__(self, source: Source) -> bool:
        return source in self._reading

    def forget(self) -> None:
        """The session has ended: its reads are never answered."""
        self._reading.clear()
        self.plan_at, self.is_notified = inf, False

    def begin(self, source: Source, view: GroupView) -> None:
        """Read a source, or read it again after the read in flight."""
        if not view.name:
            return
        if source is Source.PLAN:
            self.plan_at = inf
        if source in self._reading:
            self._reading[source] = True
            return
        name = view.older() if source is Source.OLDER else view.name
        if not name:
            return
        self._reading[source] = False
        watched = source is not Source.MEMBERS or view.is_leader or view.names is None
        watch = self._watch(source) if watched else None
        recipe: Callable[..., Recipe[Any]]
        arguments: tuple[Any, ...]
        match source:
            case Source.OWN | Source.OLDER:
                recipe, arguments = membership.exists, (self._group, name, watch)
            case Source.MEMBERS:
                recipe, arguments = membership.names, (self._group, watch)
            case Source.PLAN:
                recipe, arguments = planning.get, (self._group, watch, self._protocol)
            case Source.TOPICS:
                wanting = {*view.plan.plan.subscriptions.values(), view.info}
                recipe, arguments = planning.wanted_topics, (wanting, watch)
        done = partial(self._done, source, name, watched)
        self._effects.append(Task(recipe, arguments, done))

    def end(self, source: Source) -> bool:
        """The read is answered. Return whether the source has changed since it began."""
        return self._reading.pop(source, False)

    def next_in_turn(self, view: GroupView, others: int) -> Source | int:
        """Return what to read as a heartbeat: a source, or one of `others`, in turns."""
        sources = [Source.OWN, Source.PLAN, Source.MEMBERS]
        if view.is_leader:
            sources.append(Source.TOPICS)
        index = self._turn % (len(sources) + others)
        self._turn += 1
        return sources[index] if index < len(sources) else index - len(sources)
