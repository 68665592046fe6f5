"""A consumer's place in its group: what `Consumer` offers besides records and offsets."""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager

from folkmoot.consumers.client.health import Health, health_of
from folkmoot.consumers.client.signals import stopped_by_signals
from folkmoot.consumers.client.subscription import Subscription
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.group.group_thread import Member
from folkmoot.protocol.errors import NotOwner
from folkmoot.protocol.records import TopicPartition


class GroupPlace:
    """The part of a consumer that is about its group."""

    config: ConsumerConfig
    _fetcher: Fetcher
    _subscription: Subscription | None
    _closed: bool

    def fencing_token(self, partition: TopicPartition) -> int:
        """The epoch of our claim on a partition; it grows with every owner. Raises NotOwner.

        Whoever writes results elsewhere keeps the highest token it has seen beside them and refuses
        a lower one: so a member that lost the partition without knowing cannot write any more.
        """
        owned = {} if self._subscription is None else self._subscription.epochs
        if partition not in owned:
            raise NotOwner(f"{partition} is not owned by this consumer")
        return owned[partition]

    @property
    def member(self) -> Member | None:
        """This consumer's place in its group; None without one."""
        return None if self._subscription is None else self._subscription.member

    def health(self) -> Health:
        """How it stands. From any thread, and never waits: for probes."""
        return health_of(self._subscription, self._fetcher, self._closed)

    def leave_on_signals(
        self, *signals: signal.Signals
    ) -> AbstractContextManager[Callable[[], signal.Signals | None]]:
        """While it lasts, the first of these signals (SIGTERM and SIGINT) stops the consumer.

        ```
        with Consumer(…) as consumer, consumer.leave_on_signals() as signalled:
            for record in consumer:
                handle(record)
        ```

        The iteration ends after the record under way, and leaving the `with` block gives partitions
        up, commits, and leaves the group. What is yielded tells which signal came, if any.
        """
        return stopped_by_signals(self.stop, signals)

    # What the consumer itself does:

    def stop(self) -> None:
        raise NotImplementedError
