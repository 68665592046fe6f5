"""How much the next micro-batch may hold, and whether it waits for more."""

import time
from collections.abc import Mapping
from math import inf

from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.log_watch import LogWatch
from folkmoot.spark_apps.options.config import StreamConfig
from folkmoot.spark_apps.stream.batch_size import BatchSize


class BatchLimits:
    """Limits by the options, by the bytes that records take, and by the time that batches took."""

    def __init__(self, config: StreamConfig, logs: LogWatch) -> None:
        self._config = config
        self._logs = logs
        self._size = BatchSize(config.revokeTimeout, config.maxOffsetsPerTrigger)
        self._last_batch = -inf

    def end_batch(self) -> None:
        """The engine has come back for the next batch."""
        self._size.end(time.time())

    def begin_batch(self, records: int) -> None:
        """The engine gets a batch of this many records."""
        self._last_batch = time.monotonic()
        self._size.begin(time.time(), records)

    def records(self, limit: int, lags: Mapping[TopicPartition, int]) -> int:
        """Return how many records the next batch may have, within the engine's limit."""
        unread = {partition: lag for partition, lag in lags.items() if lag > 0}
        records = sum(unread.values())
        size = sum(lag * self._logs.record_bytes(each.topic) for each, lag in unread.items())
        limits = [limit, int(self._size.limit)]
        if size > self._config.maxBytesPerTrigger:
            limits.append(max(1, int(records * self._config.maxBytesPerTrigger / size)))
        return min(limits)

    def is_too_small(self, records: int) -> bool:
        """Return whether a batch of this many records waits for more."""
        least = self._config.minOffsetsPerTrigger
        waited = time.monotonic() - self._last_batch
        return least is not None and records < least and waited < self._config.maxTriggerDelay
