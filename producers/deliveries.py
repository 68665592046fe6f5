"""What a caller holds of a record that it has sent."""

from typing import TYPE_CHECKING

import msgspec

from folkmoot.protocol.errors import FolkmootError, RequestTimeout
from folkmoot.protocol.records import RecordMetadata

if TYPE_CHECKING:
    from folkmoot.producers.batches import Batch
    from folkmoot.producers.chunks import Chunk


class Delivery(msgspec.Struct, gc=False, eq=False):
    """What became, or will become, of one record. May be kept, asked from any thread, or ignored.

    One is made for every record, so it is no more than the record's chunk and stamp, which is an object
    that belongs to this record alone; all else is found out when somebody asks.
    """

    _chunk: "Chunk"
    _stamp: float

    def done(self) -> bool:
        """Whether the record was acknowledged, or has failed."""
        place = self._place()
        return place is not None and place[0].done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is. Raises the error that it failed with, RequestTimeout after `timeout`."""
        batch, position = self._wait(timeout)
        batch.observed = True
        if batch.error is not None:
            raise batch.error
        offset = batch.base_offset + position if batch.base_offset >= 0 else -1
        return RecordMetadata(*batch.topic_partition, offset, round(self._stamp * 1000))

    def exception(self, timeout: float | None = None) -> FolkmootError | None:
        """The error that the record failed with, or None if it was acknowledged."""
        batch, _ = self._wait(timeout)
        batch.observed = True
        return batch.error

    def _place(self) -> "tuple[Batch, int] | None":
        """For the producer itself: its batch and the position there; None as long as it has none."""
        return self._chunk.whereabouts(self._chunk.position_of(self._stamp))

    def _wait(self, timeout: float | None) -> "tuple[Batch, int]":
        with self._chunk.completed:
            if not self._chunk.completed.wait_for(self.done, timeout):
                raise RequestTimeout(
                    f"a record for {self._chunk.topic} is not acknowledged after {timeout:g} s; "
                    "it may be yet"
                )
        place = self._place()
        assert place is not None
        return place
