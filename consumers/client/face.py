"""The part that the two consumers share."""

import signal
import time
from contextlib import AbstractContextManager
from typing import Generic

from folkmoot.consumers.client.core import ConsumerCore
from folkmoot.consumers.client.health import Health, health_of
from folkmoot.consumers.client.signals import SignalHandlers, Signalled
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import ConfigError, NotOwner
from folkmoot.protocol.records import K, Record, TopicPartition, V


class ConsumerFace(Generic[K, V]):
    """The methods of a `Consumer` and an `AsyncConsumer` that never wait."""

    _core: ConsumerCore[K, V]
    _signals: SignalHandlers

    def stop(self) -> None:
        """End the iteration after the record under way, and have `poll` and its like return nothing.

        From any thread, or a signal handler.
        """
        self._core.life.stopped = True
        if not self._core.life.is_forked:
            self._core.wake()

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer reads now."""
        return self._core.assignment()

    def fencing_token(self, partition: TopicPartition) -> int:
        """Return the epoch of our claim on a partition; each owner has a higher one. Raises NotOwner.

        A store of results keeps the highest token beside them and refuses lower ones: a member that lost the
        partition without knowing then cannot write any more.
        """
        owned = {} if self._core.group is None else self._core.group.epochs
        if partition not in owned:
            raise NotOwner(f"{partition} is not owned by this consumer")
        return owned[partition]

    def health(self) -> Health:
        """Return the consumer's health. From any thread; never waits: for probes."""
        core = self._core
        return health_of(core.group, core.fetcher, core.positions, core.life.is_closed)

    def metrics(self) -> dict[str, float]:
        """Return counters since the start (see `ConsumerCounters`), and gauges. From any thread."""
        group = self._core.group  # read once: any thread may call
        member = None if group is None else group.member
        return {
            **self._core.fetcher.metrics(),
            "rebalances": 0 if member is None else member.state.owned.claims.rebalances,
            "commits": 0 if member is None else member.commits.answered,
            "commit_seconds": 0.0 if member is None else member.commits.seconds,
            "fenced_commits": 0 if member is None else member.state.owned.fenced_commits,
            "lost_partitions": 0 if member is None else member.state.owned.lost,
        }

    def leave_on_signals(self, *signals: signal.Signals) -> AbstractContextManager[Signalled]:
        """Have the first of these signals (SIGTERM and SIGINT) stop the consumer, within a `with` block.

        ```
        with Consumer(…) as consumer, consumer.leave_on_signals() as signalled:
            for record in consumer:
                handle(record)
        ```

        The iteration ends after the record under way; leaving the consumer's block commits and leaves the
        group. `signalled` is true once a signal came; a call returns the first one, or None. A second Ctrl-C
        interrupts at once, a second SIGTERM does nothing. The old handlers are restored afterwards; after a
        signal, when the consumer is closed. Raises ConcurrentUse off the main thread.
        """
        return self._signals.handled(signals, lambda: self._core.life.is_closed)

    def done(self, what: Record[K, V] | RecordBatchView) -> None:
        """Mark a record, or a batch, as processed. From any thread, in any order; with `explicit_done`.

        Commits end before the first record that is not done. For a partition that is no longer ours it has
        no effect. Raises ConfigError without `explicit_done`, or for other values.
        """
        core = self._core
        core.life.check_open()
        if not core.config.explicit_done:
            raise ConfigError("done() is for a consumer that was made with explicit_done=True")
        match what:
            case RecordBatchView() if len(what):
                start, end = what.offsets[0], what.next_offset
            case Record():
                start, end = what.offset, what.offset + 1
            case _:
                raise ConfigError(f"done() takes a record or a batch, not {what!r:.80}")
        core.positions.done(what.topic_partition, start, end)
        group = core.group
        if group is not None and what.topic_partition in group.finishing:
            core.wake()  # it may be the last one under way

    def revoking(self) -> dict[TopicPartition, float]:
        """With `explicit_done`, return the partitions being revoked, with the seconds left for each.

        No more of their records is handed out. A partition is released as soon as all its records in hand
        are done, at the latest after `max_processing_time` (None: at once), plus `revoke_timeout` for
        `on_revoke`. The others are read meanwhile. From any thread.
        """
        self._core.life.check_open()
        if (group := self._core.group) is None:
            return {}
        now = time.monotonic()
        return {partition: max(0.0, by - now) for partition, by in group.finishing.copy().items()}
