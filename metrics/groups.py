"""Metrics of consumer groups, whether anybody of them lives or not, as ZooKeeper and brokers tell."""

from collections import Counter
from collections.abc import Collection, Iterator
from threading import Lock
from typing import Final

from folkmoot.consumers.admin.admin import Admin
from folkmoot.consumers.admin.group_views import GroupView
from folkmoot.metrics import names
from folkmoot.metrics.families import Metric, family
from folkmoot.metrics.pages import Page
from folkmoot.protocol.errors import FolkmootError, UnknownGroup

MOST_PARTITIONS: Final = 5_000
"""So many partitions of all groups together have metrics of their own; `left_out` counts the others."""


class GroupMetrics:
    """What Prometheus is told of all groups, read anew each time it asks; by one thread at a time.

    `collect` raises ZooKeeperUnreachable and the like: then there is no answer, and `up` is 0.
    """

    def __init__(self, admin: Admin, groups: Collection[str] = ()) -> None:
        """`groups` are the names of those to tell of; none: all."""
        self._admin = admin
        self._wanted = groups
        self._lock = Lock()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            groups = list(self._groups())
        members = (((each.name,), len(each.members)) for each in groups)
        yield family(names.GROUP_MEMBERS, members)
        yield family(
            names.GROUP_PARTITIONS,
            (
                ((group.name, state), count)
                for group in groups
                for state, count in sorted(Counter(p.state for p in group.partitions).items())
            ),
        )
        rows = [
            ((group.name, each.partition.topic, str(each.partition.partition)), each)
            for group in groups
            for each in group.partitions
        ]
        yield family(names.GROUP_LEFT_OUT, [((), max(0, len(rows) - MOST_PARTITIONS))])
        for declared in names.GROUP:
            values = (
                (labels, getattr(each, declared.key)) for labels, each in rows[:MOST_PARTITIONS]
            )
            known = ((labels, value) for labels, value in values if value is not None)
            yield family(declared, known)

    def _groups(self) -> Iterator[GroupView]:
        for name in self._wanted or self._admin.group_names():
            try:
                yield self._admin.describe_group(name)
            except UnknownGroup:
                continue  # it was deleted meanwhile, or is still to come

    def alive(self) -> Page:
        """The process lives: what it cannot reach it tries again."""
        return Page(True, {})

    def ready(self) -> Page:
        """ZooKeeper answers."""
        try:
            with self._lock:
                self._admin.topics()
        except FolkmootError as error:
            return Page(False, {"error": str(error)})
        return Page(True, {})
