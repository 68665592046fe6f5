"""A consumer whose application lives in another thread."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from folkmoot.consumers.client.consumer import CLOSE_TIMEOUT, Consumer
from folkmoot.consumers.offsets.positions import Progress
from folkmoot.consumers.records.batch_cursor import Lent
from folkmoot.protocol.records import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class OfferingConsumer(Consumer):
    """What it finds is only offered: it is handed out when somebody accepts it, else read again.

    For a consumer in a thread of its own, whose records go to tasks that may be gone when they come.

    The other thread calls `accept`, takes its steps through what `lend` returned, and may call `wake`;
    everything else belongs to the consumer's own.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_wanted: Callable[[], bool] = lambda: False
        self._offered: list[tuple[Progress, int]] = []

    def _is_wanted(self) -> bool:
        return self.is_wanted()

    def _hand_out(self, partition: TopicPartition, end: int) -> None:
        self._offered.append((self._positions.of(partition), end))

    def accept(self) -> bool:
        """What was found is the application's. → whether anything was."""
        offered, self._offered = self._offered, []
        for progress, end in offered:
            progress.handed_out = end
        return bool(offered)

    def read_again(self) -> None:
        """What was found has reached nobody."""
        if self._offered:
            self._offered = []
            self._fetcher.turns.read_again()

    def lend(self) -> Lent | None:
        """What to iterate over. It counts as handed out as far as the iteration comes."""
        return self._lend()

    def next_arrow(
        self, timeout: float, max_records: int | None, headers: bool
    ) -> "pa.RecordBatch | None":
        return self._next_arrow(timeout, max_records, headers)

    def wake(self) -> None:
        self._wake()

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def abandon(self) -> None:
        """It could not be started, or nobody waits for that any more."""
        self._close(CLOSE_TIMEOUT)
