"""What a partition remembers of its producers: which batch is a duplicate, which one follows."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from folkmoot.protocol.batch_header import NO_PRODUCER_ID, BatchHeader, following_sequence
from folkmoot.protocol.errors import (
    InvalidRequest,
    OutOfOrderSequence,
    Overloaded,
    ProducerFenced,
    UnknownProducer,
)

KEPT_BATCHES: Final = 5
"""How many batches of a producer are recognised when they come again; so many it may have in flight."""

KEPT_FOR: Final = 900.0
"""A producer that wrote within so many seconds is not forgotten, however many others come."""


class Written(NamedTuple):
    """A batch that is in the log: its sequences, both inclusive, and where it is."""

    first: int
    last: int
    base_offset: int


class ProducerState(msgspec.Struct, gc=False):
    """A producer's last batches in this partition, the newest last, all of the one epoch."""

    producer_id: int
    epoch: int
    batches: tuple[Written, ...]
    idle_since: float | None = None
    """When `expire` first found that nothing had come since the time before, by the clock of the
    Producers that it belongs to; None: not yet."""


class Producers:
    """The producers of one partition, as its log tells of them.

    Rules, for a batch with a producer id. Of the current epoch: it is one of the last KEPT_BATCHES,
    and a duplicate; or it begins with the sequence behind the last one; or it is out of order. Of an
    older epoch: it is fenced. Of a newer epoch, or of a producer that is not known: it begins with
    sequence 0, else it is out of order, or its producer unknown. Batches without a producer id are
    not looked at.

    `check` asks, `note` tells what was appended. Both look at headers only and take the same time
    however many producers there are. `note` asks nothing: what is in the log is so, whoever let it
    in, so that noting the headers of a log in order gives the state that its leader had.

    A producer is forgotten when nothing came from it for the expiry, or to make room for another
    when there are `limit`, and then only if nothing came for KEPT_FOR: one whose batch is in doubt
    would write it twice, in silence. If there is none such, the new one is refused as Overloaded.
    Idleness is measured by `clock`, which `expire` moves on by the monotonic time between its calls
    and which stands while the broker is down: never too long.

    `_states` is in the order of the last batch. Owner: the log, on the broker's reactor thread.
    """

    __slots__ = ("_seen", "_states", "clock", "limit")

    def __init__(
        self, limit: int, states: Iterable[ProducerState] = (), clock: float = 0.0
    ) -> None:
        self.limit = limit
        self.clock = clock
        self._seen: float | None = None
        self._states = {state.producer_id: state for state in states}

    def __len__(self) -> int:
        return len(self._states)

    @property
    def states(self) -> Sequence[ProducerState]:
        """All of them, the one that wrote last at the end."""
        return list(self._states.values())

    # -- batches that come in -----------------------------------------------------------------------

    def check(self, header: BatchHeader, before: dict[int, BatchHeader]) -> int | None:
        """None if the batch may be appended, the base offset of the original if it is a duplicate.

        `before`: the last batch of each producer that is to be appended in front of this one, by the
        same call; this one is added to them. Raises OutOfOrderSequence, ProducerFenced,
        UnknownProducer, Overloaded, InvalidRequest; then it may not be appended.
        """
        producer_id, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
        if producer_id == NO_PRODUCER_ID:
            return None
        if producer_id < 0 or epoch < 0 or first < 0:
            raise InvalidRequest(
                f"a batch of producer {producer_id}, epoch {epoch}, sequence {first}: none may be "
                "negative"
            )
        state = self._states.get(producer_id)
        ahead = before.get(producer_id)
        if ahead is not None:
            self._check_follows(header, ahead.producer_epoch, ahead.last_sequence)
        elif state is None:
            if first:
                raise UnknownProducer(
                    f"producer {producer_id} is not known here and goes on with sequence {first}"
                )
            self._make_room(before)
        else:
            if epoch == state.epoch:
                for written in state.batches:
                    if written.first == first and written.last == header.last_sequence:
                        return written.base_offset
            self._check_follows(header, state.epoch, state.batches[-1].last)
        before[producer_id] = header
        return None

    def _check_follows(self, header: BatchHeader, epoch: int, last: int) -> None:
        who = f"producer {header.producer_id}, epoch {header.producer_epoch}"
        if header.producer_epoch < epoch:
            raise ProducerFenced(f"{who}: epoch {epoch} has written already")
        expected = 0 if header.producer_epoch > epoch else following_sequence(last, 1)
        if header.base_sequence != expected:
            raise OutOfOrderSequence(
                f"{who}: sequence {header.base_sequence} came, {expected} is next"
            )

    def _make_room(self, before: dict[int, BatchHeader]) -> None:
        """For one more than there are, and than those of `before` who are new."""
        new = sum(producer_id not in self._states for producer_id in before)
        while len(self._states) + new >= self.limit:
            oldest = next(iter(self._states.values()), None)
            idle = None if oldest is None else oldest.idle_since
            if oldest is None or idle is None or self.clock - idle < KEPT_FOR:
                raise Overloaded(
                    f"{len(self._states) + new} producers have written to the partition, as many as "
                    "are remembered: use fewer, or raise max_producers"
                )
            del self._states[oldest.producer_id]

    def note(self, header: BatchHeader, base_offset: int) -> None:
        """The batch is in the log."""
        producer_id = header.producer_id
        if producer_id < 0:
            return
        written = Written(header.base_sequence, header.last_sequence, base_offset)
        state = self._states.pop(producer_id, None)
        if state is None or state.epoch != header.producer_epoch:
            state = ProducerState(producer_id, header.producer_epoch, (written,))
        else:
            state.batches = (*state.batches[1 - KEPT_BATCHES :], written)
            state.idle_since = None
        self._states[producer_id] = state

    def replay(self, headers: Iterable[BatchHeader]) -> None:
        """Note what the log holds; of more than `limit` producers those that wrote last are kept."""
        for header in headers:
            self.note(header, header.base_offset)
            while len(self._states) > self.limit:
                del self._states[next(iter(self._states))]

    # -- forgetting ---------------------------------------------------------------------------------

    def expire(self, now: float, expiry: float) -> None:
        """Forget those of which nothing came for `expiry` seconds. To be called now and then."""
        self.clock += 0.0 if self._seen is None else now - self._seen
        self._seen = now
        for state in reversed(self._states.values()):
            if state.idle_since is not None:
                break
            state.idle_since = self.clock
        while self._states:
            oldest = next(iter(self._states.values()))
            if oldest.idle_since is None or self.clock - oldest.idle_since < expiry:
                break
            del self._states[oldest.producer_id]
