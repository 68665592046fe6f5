"""Decompressing beside the application's thread what is handed out next."""

from collections.abc import Sequence
from contextlib import suppress
from threading import Thread

from folkmoot.consumers.fetch.partition_state import Body, Fetched, Reading
from folkmoot.protocol import compression, record_batch


class Ahead:
    """Batches of several readings, being decompressed by a thread that lives for them alone.

    There are several of these at once: while the application's thread is busy nothing new is begun,
    and the processors beside it have something to do nevertheless.

    Some MiB at a time, so the thread is cheap beside its work, and nobody has to end it. It touches
    nothing but the compressed bytes, which never change, and it holds the interpreter's lock only for
    a moment at each end: `Thread.start` returns when it runs, so the first of these is over before
    the application goes on, however busy that is. The second may have to wait until the application
    does: nobody needs it earlier.

    What has happened to the readings meanwhile (a seek, a pause) does no harm: `give` looks whether
    a batch still is the next one without a body.
    """

    def __init__(
        self, found: Sequence[tuple[Reading, Fetched]], compressed: Sequence[memoryview]
    ) -> None:
        self._found = found
        self._compressed = compressed
        self._bodies: Sequence[Body] = ()
        self._thread = Thread(target=self._decompress, name="folkmoot-decompress")

    @classmethod
    def begin(cls, found: Sequence[tuple[Reading, Fetched]]) -> "Ahead | None":
        """Of these the first, as many as may be decompressed together; None where it would not pay."""
        compressed = record_batch.openable_together([fetched for _, fetched in found])
        if not compressed:
            return None
        ahead = cls(found[: len(compressed)], compressed)
        try:
            ahead._thread.start()
        except RuntimeError:  # no more threads are to be had: done when its turn comes
            return None
        return ahead

    @property
    def planned(self) -> set[int]:
        """The identities of these batches, as long as this is there."""
        return {id(fetched) for _, fetched in self._found}

    def finish(self) -> None:
        """Wait for the thread, then give the readings what it made."""
        self._thread.join()
        give(self._found, self._bodies)

    def _decompress(self) -> None:
        with suppress(MemoryError):  # told by whoever opens them one by one, if there is none then
            self._bodies = compression.decompress_together(self._compressed, 1)


def give(found: Sequence[tuple[Reading, Fetched]], bodies: Sequence[Body]) -> None:
    """Each reading has these bodies now, but for those of batches that are not its next any more."""
    for (reading, fetched), body in zip(found, bodies, strict=False):
        number = len(reading.bodies)
        if number < len(reading.batches) and reading.batches[number] is fetched:
            reading.bodies.append(body)
