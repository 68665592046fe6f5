"""What a consumer counts: plain integers, written by the thread that polls."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from folkmoot.consumers.fetch.partition_state import Reading
from folkmoot.protocol.batch_header import BatchHeader


@dataclass(slots=True)
class ConsumerCounters:
    """Counted per batch or per request, never per record; they only grow."""

    records_fetched: int = 0
    records_taken: int = 0
    """Taken out of the buffer to be handed out; what an iteration gives back is taken again."""
    batches_fetched: int = 0
    bytes_fetched: int = 0
    """Batches as they came, compressed."""
    fetches_sent: int = 0
    fetches_refused: int = 0
    """Partitions that a fetch brought an error for."""
    offset_resets: int = 0

    def fetched(self, headers: Sequence[BatchHeader]) -> None:
        """These batches came."""
        self.batches_fetched += len(headers)
        self.records_fetched += sum(header.record_count for header in headers)
        self.bytes_fetched += sum(header.length for header in headers)


def state_of(readings: Collection[Reading]) -> dict[str, int]:
    """How things stand: what is buffered, and how far behind the ends we are."""
    lags = [each.end - each.hand_out for each in readings if each.end >= 0]
    return {
        "partitions": len(readings),
        "buffered_bytes": sum(each.buffered_bytes for each in readings),
        "lag": sum(max(0, lag) for lag in lags),
    }
