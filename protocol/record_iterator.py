"""The records of a batch one by one, with no line of Python for any of them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any

from folkmoot.protocol import speedups
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.records import Record


class PureRecordIterator(Iterator[Record[Any, Any]]):
    """Makes each record when it is read, so that it and its cells take the memory, still in the cache, of
    the record before.

    ```
    gate     t t t t t t t t        the topic, for each record; emptied by `cut`
    offsets  5 6 7 8 9 …            a C iterator that knows how many are left
                   ▲
    records ───────┘                map(Record, gate, …, offsets, …): ends with the gate
    ```

    `row` is derived from the offsets that are left, not counted. `cut` ends the iteration behind the
    current record, from any thread or signal handler. The gate is read before the offsets, so `row` never
    counts a record that was not handed out.
    """

    __slots__ = ("_count", "_gate", "_offsets", "_records")

    def __init__(
        self,
        topic: str,
        partition: int,
        offsets: Sequence[int],
        columns: Columns,
        append_time: bool,
    ) -> None:
        self._count = columns.count
        self._gate = [topic] * columns.count
        self._offsets = iter(offsets)
        stamps = columns.timestamps
        fields: list[Iterable[Any]] = [
            *(self._gate, repeat(partition), self._offsets),
            repeat(stamps) if isinstance(stamps, int) else stamps,
            repeat(None) if columns.keys is None else columns.keys,
            columns.values,
        ]
        if columns.headers is not None or append_time:  # else the defaults, which cost less
            headers = repeat(()) if columns.headers is None else columns.headers
            fields += [headers, repeat(append_time)]
        self._records = map(Record, *fields)

    @property
    def row(self) -> int:
        """The number of records that were handed out."""
        return self._count - length_hint(self._offsets)

    def cut(self) -> None:
        """End the iteration."""
        self._gate.clear()

    def __iter__(self) -> Iterator[Record[Any, Any]]:
        return self._records  # without a method of Python for each record

    def __next__(self) -> Record[Any, Any]:
        return next(self._records)


if TYPE_CHECKING:
    RecordIterator = PureRecordIterator
else:
    _compiled = speedups.compiled("folkmoot.protocol._speedups")
    RecordIterator = PureRecordIterator if _compiled is None else _compiled.RecordIterator
