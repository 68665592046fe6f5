"""Where a consumer stands and goes on, and what it commits: what `Consumer` offers besides records."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from folkmoot.consumers.client.subscription import Subscription
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.offsets.directory import Directory
from folkmoot.consumers.offsets.offset_lookup import Place, first_offsets, go_to
from folkmoot.consumers.offsets.positions import Positions
from folkmoot.consumers.offsets.validation import whole
from folkmoot.consumers.records.batch_cursor import Lent
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.records import TopicPartition


class OffsetControl:
    """The part of a consumer that is about offsets; for the thread that polls."""

    config: ConsumerConfig
    _directory: Directory
    _fetcher: Fetcher
    _positions: Positions
    _subscription: Subscription | None
    _calling_back: bool
    _lent: Lent | None

    def commit(
        self, offsets: Mapping[TopicPartition, int] | None = None, timeout: float = 30.0
    ) -> None:
        """Commit the next offsets to process; without `offsets`, of everything handed out so far.

        Raises NotOwner if a partition is no longer ours (the others are committed), RequestTimeout
        if ZooKeeper did not answer in time (then the commit may still come to pass), ConfigError for
        what is no offset (then nothing is committed), and InstanceReplaced.
        """
        self._check_usable()
        if self._subscription is None:
            raise ConfigError("there is no group to commit to: give group=… and topics=…")
        if offsets is None:
            if not self._calling_back:  # else what is processed is known: nothing is under way
                self._settle()
                self._positions.process_all()
            offsets = self._positions.uncommitted(self._subscription.epochs)
        wanted = {_named(each): _offset(each, offset) for each, offset in offsets.items()}
        self._subscription.commit(wanted, timeout)

    def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset, None if there is none. Raises ZooKeeperUnreachable."""
        self._check_usable()
        if self.config.group is None:
            raise ConfigError("without a group nothing is committed: give group=…")
        return self._directory.committed(self.config.group, TopicPartition(*partition))

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset to be handed out; None while it is looked up. Raises NotAssigned."""
        self._check_usable()
        lent = self._lent
        if lent is not None and lent.view.topic_partition == partition:
            if (offset := lent.next_offset) is not None:
                return offset
        return self._fetcher.position(partition)

    def end_offset(self, partition: TopicPartition) -> int | None:
        """The partition's end as the last fetch saw it; None before the first. Raises NotAssigned."""
        self._check_usable()
        end = self._fetcher.end(partition)
        return None if end < 0 else end

    def seek(self, partition: TopicPartition, place: Place) -> None:
        """Go on at an offset, at "beginning" or "end", or at a time. Raises NotAssigned, ConfigError."""
        self._check_usable()
        self._take_back()
        go_to(self._fetcher, partition, place)
        self._positions.forget(partition)

    def offsets_for_time(
        self, times: Mapping[TopicPartition, datetime], timeout: float = 30.0
    ) -> dict[TopicPartition, int | None]:
        """The first offset at each time or later; None: none yet. Raises RequestTimeout, ConfigError."""
        self._check_usable()
        return first_offsets(self.config, self._directory.brokers, times, timeout)

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until `resume`. Raises NotAssigned."""
        self._pause(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`. Raises NotAssigned."""
        self._pause(partitions, False)

    def _pause(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        self._check_usable()
        self._take_back()
        for partition in partitions:
            self._fetcher.pause(TopicPartition(*partition), paused)

    # What the consumer itself does:

    def _check_usable(self) -> None:
        raise NotImplementedError

    def _take_back(self) -> None:
        raise NotImplementedError

    def _settle(self) -> None:
        raise NotImplementedError


def _named(partition: tuple[str, int]) -> TopicPartition:
    """With its number as an int: the group's paths are made of it, and True equals 1."""
    topic, number = partition
    return TopicPartition(topic, whole(f"the number of a partition of {topic}", number))


def _offset(partition: tuple[str, int], offset: object) -> int:
    return whole(f"the offset to commit for {TopicPartition(*partition)}", offset)
