"""A producer's counters: plain numbers, written by its thread, read from any thread."""

from dataclasses import dataclass


@dataclass(slots=True)
class ProducerCounters:
    """Counted per batch or per request, never per record; they only grow."""

    records_delivered: int = 0
    """Acknowledged, or with acks=0 sent."""
    records_failed: int = 0
    batches_delivered: int = 0
    batches_failed: int = 0
    batches_sent: int = 0
    """Each attempt counts."""
    batches_retried: int = 0
    epochs_begun: int = 0
    """How often a partition's sequences did not fit what its broker has, and began anew."""
    requests_sent: int = 0
    bytes_packed: int = 0
    """Records of the batches made, with their overhead in memory, before compression."""
    bytes_compressed: int = 0
    """Those batches as they were sent, headers included."""
    bytes_sent: int = 0
    """Each attempt counts."""
    queue_seconds: float = 0.0
    """Total time of batches from their first record to the first request."""
