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


def produce(parameters: Parameters) -> None:
    """`how`: "send", "columns" (lists), "arrow"; `way` is what each record of "send" has besides."""
    topic, path, count = parameters["topic"], Path(parameters["records"]), parameters["count"]
    if parameters["how"] == "arrow":
        columns: Any = [_array(lengths.tolist(), blob) for lengths, blob in read_blobs(path, count)]
    else:
        columns = read_columns(path, count)
    delivered: list[object] = []
    with Producer(
        zookeeper=parameters["address"],
        acks=parameters.get("acks", 1),
        compression=parameters["compression"],
    ) as producer:
        ways: dict[str, Callable[[Any, Any], None]] = {
            "": partial(_plainly, producer.send, topic),
            "header": partial(_with_header, producer.send, topic),
            "callback": partial(_with_callback, producer.send, topic, delivered.append),
            "partition": partial(
                _to_partitions, producer.send, topic, parameters.get("partitions", 0)
            ),
        }
        way = parameters.get("way", "")
        fill = ways[way] if parameters["how"] == "send" else partial(_in_batches, producer, topic)

        def send(keys: Any, values: Any) -> None:
            fill(keys, values)
            producer.flush(WAIT)

        time_sending(parameters, columns, send)
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


def _to_partitions(send: Send, topic: str, partitions: int, keys: Cells, values: Cells) -> None:
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


def consume(parameters: Parameters) -> None:
    """`how`: "records" (one object at a time), "poll" (lists of them), "columns", "arrow"."""
    topic, count = parameters["topic"], parameters["count"]
    read = _READS[parameters["how"]]
    clock = Stopwatch()
    with Consumer(zookeeper=parameters["address"]) as warm:
        warm.assign(warm.partitions_of(topic))
        read(warm, min(parameters["warm"], count))
    with Consumer(zookeeper=parameters["address"]) as consumer:
        partitions = consumer.partitions_of(topic)
        clock.start()
        consumer.assign(partitions)
        read_count, size = read(consumer, count)
        clock.stop()
        # How many records the log has in all, whether they were read or not.
        end = sum(consumer.end_offset(each) or 0 for each in partitions)
        clock.report(read_count, bytes=size, end=end)


def _iterate(consumer: Consumer, count: int) -> tuple[int, int]:
    """Cut into pieces, so that counting costs nothing per record, as it does in the peers' batches."""
    read_count = size = 0
    records = iter(consumer)
    while read_count < count:
        chunk = min(ROWS, count - read_count)
        for record in islice(records, chunk):
            size += len(record.value or b"")
        read_count += chunk
    return read_count, size


def _poll(consumer: Consumer, count: int) -> tuple[int, int]:
    read_count = size = 0
    while read_count < count:
        records = consumer.poll(WAIT, max_records=ROWS)
        if not records:
            break
        for record in records:
            size += len(record.value or b"")
        read_count += len(records)
    return read_count, size


def _read_columns(consumer: Consumer, count: int) -> tuple[int, int]:
    """Every value is there as an object, and looked at."""
    read_count = size = 0
    for view in consumer.batches():
        values = view.values
        size += sum(map(len, values))  # type: ignore[arg-type]
        read_count += len(values)
        if read_count >= count:
            break
    return read_count, size


def _read_arrow(consumer: Consumer, count: int) -> tuple[int, int]:
    import pyarrow.compute as pc

    read_count = size = 0
    for batch in consumer.arrow():
        size += pc.sum(pc.binary_length(batch.column("value"))).as_py()
        read_count += batch.num_rows
        if read_count >= count:
            break
    return read_count, size


_READS: Final = {
    "records": _iterate,
    "poll": _poll,
    "columns": _read_columns,
    "arrow": _read_arrow,
}


if __name__ == "__main__":
    main({"produce": produce, "consume": consume})
