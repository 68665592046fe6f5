"""Attempts at an epoch of rows, as they are noted in ZooKeeper (coordination.producer_takeovers)."""

import logging
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from functools import partial
from typing import Final, TypeVar
from uuid import uuid4

from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.producer_takeovers import (
    PartitionStart,
    TopicStart,
    claim_name,
    find_other_attempts,
    forget_starts,
    note_starts,
)
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import Connect
from folkmoot.protocol.errors import ProducerFenced, RowsChanged, ZooKeeperUnreachable

SESSION_TIMEOUT: Final = 10.0
PATIENCE: Final = 60.0
"""How long brokers and ZooKeeper may be out of reach before a task fails, in seconds."""
PAUSE: Final = 0.1

T = TypeVar("T")
log = logging.getLogger(__name__)


class Attempt:
    """This attempt at an epoch under a name. All calls raise ProducerFenced once a later one has begun."""

    def __init__(self, name: str, epoch: int, finder: ZooKeeperDiscovery) -> None:
        """Raises ProducerFenced also if a later epoch has begun; ZooKeeperUnreachable."""
        self._name = name
        self._id = uuid4().hex
        self._finder = finder
        self.claim = run_with_retries(finder, partial(claim_name, name, epoch, self._id))

    def note_starts(self, topic_id: str, starts: list[PartitionStart]) -> TopicStart:
        """Note where the epoch begins in a topic's partitions; returns what an earlier attempt has noted."""
        return run_with_retries(
            self._finder, partial(note_starts, self._name, self._id, topic_id, starts)
        )

    def forget_starts(self) -> None:
        """Let the epoch begin behind all that was written of it."""
        run_with_retries(self._finder, partial(forget_starts, self._name, self._id))


def check_tasks(
    zookeeper: str | Connect, listener: str, prefix: str, epoch: int, tasks: Collection[int]
) -> None:
    """Raise RowsChanged, once, if an earlier attempt has written an epoch by other tasks than these, too.

    Names are `prefix` and a task's number. All of these tasks have ended. If this process dies before the
    last name is corrected, the batch raises it when it runs again. If it dies after that, it has logged
    it. Raises ZooKeeperUnreachable.
    """
    finder = ZooKeeperDiscovery(connector(zookeeper), SESSION_TIMEOUT, listener)
    with closing(finder):
        other_attempts = run_with_retries(
            finder, partial(find_other_attempts, prefix, epoch, tasks)
        )
        if not other_attempts:
            return
        error = RowsChanged(
            f"an attempt before has written this batch in other tasks, too ({', '.join(other_attempts)}): "
            "their rows are there twice (a batch must be divided in the same way when it runs again)"
        )
        log.warning("%s", error)
        for name, attempt in other_attempts.items():
            with suppress(ProducerFenced):  # it still runs: the next attempt finds it once more
                run_with_retries(finder, partial(forget_starts, name, attempt))
    raise error


def run_with_retries(finder: ZooKeeperDiscovery, recipe: Callable[[], Recipe[T]]) -> T:
    """Return what a recipe returns that may be begun anew. Raises ZooKeeperUnreachable."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return finder.ask(recipe())
        except ZooKeeperUnreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)
