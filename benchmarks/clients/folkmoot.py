"""Folkmoot's clients: record at a time, in columns, and as Arrow (whose import the others are spared)."""

from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.clients.program import (
    Parameters,
    Stopwatch,
    main,
    read_blobs,
    read_columns,
    time_sending,
)
from folkmoot import Consumer, Producer

if TYPE_CHECKING:
    import pyarrow as pa

WAIT: Final = 60.0
ROWS: Final = 10_000

Send = Callable[..., Any]
Cells = list[bytes]


def produce(given: Parameters) -> None:
    """`how`: "send", "columns" (lists), "arrow"; `way` is what each record of "send" has besides."""
    topic, path, count = given["topic"], Path(given["records"]), given["count"]
    if given["how"] == "arrow":
        columns: Any = [_array(lengths.tolist(), blob) for lengths, blob in read_blobs(path, count)]
    else:
        columns = read_columns(path, count)
    delivered: list[object] = []
    with Producer(
        zookeeper=given["address"],
        acks=given.get("acks", 1),
        compression=given["compression"],
    ) as producer:
        ways: dict[str, Callable[[Any, Any], None]] = {
            "": partial(_plainly, producer.send, topic),
            "header": partial(_with_header, producer.send, topic),
            "callback": partial(_with_callback, producer.send, topic, delivered.append),
            "partition": partial(_placed, producer.send, topic, given.get("partitions", 0)),
        }
        way = given.get("way", "")
        fill = ways[way] if given["how"] == "send" else partial(_in_batches, producer, topic)

        def send(keys: Any, values: Any) -> None:
            fill(keys, values)
            producer.flush(WAIT)

        time_sending(given, columns, send)
    if way == "callback" and len(delivered) != count:
        raise RuntimeError(f"{len(delivered)} of {count} deliveries were reported")


# Each way in a loop of its own, so that none pays for the others.


def _plainly(send: Send, topic: str, keys: Cells, values: Cells) -> None:
    for key, value in zip(keys, values, strict=True):
        send(topic, value, key)


def _with_header(send: Send, topic: str, keys: Cells, values: Cells) -> None:
    headers = [("source", b"benchmark")]
    for key, value in zip(keys, values, strict=True):
        send(topic, value, key, headers=headers)


def _with_callback(send: Send, topic: str, callback: Send, keys: Cells, values: Cells) -> None:
    for key, value in zip(keys, values, strict=True):
        send(topic, value, key, on_delivery=callback)


def _placed(send: Send, topic: str, partitions: int, keys: Cells, values: Cells) -> None:
    for key, value, number in zip(keys, values, cycle(range(partitions)), strict=False):
        send(topic, value, key, number)


def _in_batches(producer: Producer, topic: str, keys: Any, values: Any) -> None:
    """Lists or Arrow arrays, cut in pieces."""
    for start in range(0, len(values), ROWS):
        rows = slice(start, start + ROWS)
        producer.send_batch(topic, values[rows], keys[rows])


def _array(lengths: list[int], blob: bytes) -> "pa.Array":
    """Binary, with 64-bit offsets: a column may be larger than 2 GB."""
    import numpy as np
    import pyarrow as pa

    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(blob)]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def consume(given: Parameters) -> None:
    """`how`: "records" (one object at a time), "poll" (lists of them), "columns", "arrow"."""
    topic, count = given["topic"], given["count"]
    take = _READS[given["how"]]
    clock = Stopwatch()
    with Consumer(zookeeper=given["address"]) as warm:
        warm.assign(warm.partitions_of(topic))
        take(warm, min(given["warm"], count))
    with Consumer(zookeeper=given["address"]) as consumer:
        partitions = consumer.partitions_of(topic)
        clock.start()
        consumer.assign(partitions)
        taken, size = take(consumer, count)
        clock.stop()
        # How many records the log has in all, whether they were read or not.
        end = sum(consumer.end_offset(each) or 0 for each in partitions)
        clock.tell(taken, bytes=size, end=end)


def _iterate(consumer: Consumer, count: int) -> tuple[int, int]:
    """Cut into pieces, so that counting costs nothing per record, as it does in the peers' batches."""
    taken = size = 0
    records = iter(consumer)
    while taken < count:
        piece = min(ROWS, count - taken)
        for record in islice(records, piece):
            size += len(record.value or b"")
        taken += piece
    return taken, size


def _poll(consumer: Consumer, count: int) -> tuple[int, int]:
    taken = size = 0
    while taken < count:
        records = consumer.poll(WAIT, max_records=ROWS)
        if not records:
            break
        for record in records:
            size += len(record.value or b"")
        taken += len(records)
    return taken, size


def _read_columns(consumer: Consumer, count: int) -> tuple[int, int]:
    """Every value is there as an object, and looked at."""
    taken = size = 0
    for view in consumer.batches():
        values = view.values
        size += sum(map(len, values))  # type: ignore[arg-type]
        taken += len(values)
        if taken >= count:
            break
    return taken, size


def _read_arrow(consumer: Consumer, count: int) -> tuple[int, int]:
    import pyarrow.compute as pc

    taken = size = 0
    for batch in consumer.arrow():
        size += pc.sum(pc.binary_length(batch.column("value"))).as_py()
        taken += batch.num_rows
        if taken >= count:
            break
    return taken, size


_READS: Final = {
    "records": _iterate,
    "poll": _poll,
    "columns": _read_columns,
    "arrow": _read_arrow,
}


if __name__ == "__main__":
    main({"produce": produce, "consume": consume})
