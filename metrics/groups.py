"""Metrics of consumer groups, with or without live members, read from ZooKeeper and brokers."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from threading import Lock
from typing import Final, TypeVar

from folkmoot.admin.admin import Admin
from folkmoot.metrics import names
from folkmoot.metrics.families import Metric, family
from folkmoot.metrics.pages import Page
from folkmoot.protocol.errors import FolkmootError

MOST_PARTITIONS: Final = 5_000
"""Partitions of all groups together with metrics of their own; `left_out` counts the others."""

_T = TypeVar("_T")


class GroupMetrics:
    """Collect the metrics of all groups, which are read at each scrape, by one thread at a time.

    `collect` raises ZooKeeperUnreachable and the like. The scrape then fails, and `up` is 0.
    """

    def __init__(self, admin: Admin, groups: Collection[str] = ()) -> None:
        """`groups` are names; empty means all."""
        self._admin = admin
        self._group_names = groups
        self._lock = Lock()
        self._trouble: str | None = None

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            groups = self._read(lambda: self._admin.describe_groups(self._group_names or None))
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
            known_values = ((labels, value) for labels, value in values if value is not None)
            yield family(declared, known_values)

    def _read(self, read: Callable[[], _T]) -> _T:
        """Read by the admin, whose lock is held, and remember whether it succeeded."""
        try:
            result = read()
        except FolkmootError as error:
            self._trouble = str(error)
            raise
        self._trouble = None
        return result

    def alive(self) -> Page:
        """The process lives: it retries what it cannot reach."""
        return Page(True, {})

    def ready(self) -> Page:
        """Return whether ZooKeeper answers; during a scrape, whether it did last time."""
        if self._lock.acquire(blocking=False):
            try:
                self._read(self._admin.topics)
            except FolkmootError:
                pass  # it is kept
            finally:
                self._lock.release()
        trouble = self._trouble
        return Page(True, {}) if trouble is None else Page(False, {"error": trouble})
