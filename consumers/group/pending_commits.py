"""A member's commits without an outcome yet."""

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import NamedTuple

from folkmoot.consumers.group.events import Committed, Notice
from folkmoot.protocol.records import TopicPartition


class _Commit(NamedTuple):
    """`is_awaited`: a thread waits for the outcome, so that the consumer need not be woken for it."""

    requested_at: float
    partitions: frozenset[TopicPartition]
    is_awaited: bool
    outcome: Future[Committed]


class PendingCommits:
    """Commits by their tokens. Any thread may `begin` one, and after the member's end `refuse_all`."""

    def __init__(self) -> None:
        self.answered = 0
        self.seconds = 0.0
        """The duration of all answered commits together."""
        self.is_closed = False
        """The member has ended: each commit must be refused."""
        self._tokens = itertools.count(1)
        self._commits: dict[int, _Commit] = {}

    def begin(
        self, partitions: Iterable[TopicPartition], now: float, *, is_awaited: bool
    ) -> tuple[int, Future[Committed]]:
        token, outcome = next(self._tokens), Future[Committed]()
        outcome.set_running_or_notify_cancel()  # a waiter that gives up must not cancel it
        self._commits[token] = _Commit(now, frozenset(partitions), is_awaited, outcome)
        return token, outcome

    def end(self, notice: Committed, now: float) -> bool:
        """Give a commit its outcome. Return whether a thread waits for it."""
        commit = self._commits.pop(notice.token)
        self.answered += 1
        self.seconds += now - commit.requested_at
        commit.outcome.set_result(notice)
        return commit.is_awaited

    def refuse_all(self, report: Callable[[Notice], None]) -> None:
        """Refuse each commit, after a `report` of the outcome."""
        while self._commits:
            try:
                token, commit = self._commits.popitem()
            except KeyError:  # another thread was faster
                return
            refused = Committed(token, {}, commit.partitions)
            report(refused)
            commit.outcome.set_result(refused)
