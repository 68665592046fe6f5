"""Folkmoot's clients: record at a time, in columns, and as Arrow (whose import the others are spared)."""

from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.clients.program import Parameters, Stopwatch, main, read_blobs, read_columns
from folkmoot import Consumer, Producer, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

WAIT: Final = 60.0
ROWS: Final = 10_000

Send = Callable[..., Any]


def _producer(given: Parameters) -> Producer:
    return Producer(
        zookeeper=given["address"],
        acks=given.get("acks", 1),
        compression=given["compression"],
        **given.get("options", {}),
    )


def produce(given: Parameters) -> None:
    """`how`: "send", "columns" (lists), "arrow"; `way` is what each record of "send" has besides."""
    {"send": _send, "columns": _send_columns, "arrow": _send_arrow}[given["how"]](given)


def _send(given: Parameters) -> None:
    keys, values = read_columns(Path(given["records"]), given["count"])
    topic, warm, count = given["topic"], given["warm"], given.get("partitions", 0)
    send_all: dict[str, Callable[..., list[object] | None]]
    send_all = {"": _plainly, "header": _with_header, "callback": _told, "partition": _placed}
    clock = Stopwatch()
    with _producer(given) as producer:
        send = partial(send_all[given.get("way", "")], producer.send, topic, count)
        send(keys[:warm], values[:warm])
        producer.flush(WAIT)
        rest = (keys[warm:], values[warm:])
        clock.start()
        told = send(*rest)
        producer.flush(WAIT)
        clock.stop()
        clock.tell(len(values) - warm)
        if told is not None and len(told) != len(values) - warm:
            raise RuntimeError(f"{len(told)} of {len(values) - warm} deliveries were told")


def _plainly(send: Send, topic: str, _: int, keys: list[bytes], values: list[bytes]) -> None:
    for key, value in zip(keys, values, strict=True):
        send(topic, value, key)


def _with_header(send: Send, topic: str, _: int, keys: list[bytes], values: list[bytes]) -> None:
    headers = [("source", b"benchmark")]
    for key, value in zip(keys, values, strict=True):
        send(topic, value, key, headers=headers)


def _told(send: Send, topic: str, _: int, keys: list[bytes], values: list[bytes]) -> list[object]:
    told: list[object] = []
    tell = told.append
    for key, value in zip(keys, values, strict=True):
        send(topic, value, key, on_delivery=tell)
    return told


def _placed(send: Send, topic: str, count: int, keys: list[bytes], values: list[bytes]) -> None:
    for key, value, number in zip(keys, values, cycle(range(count)), strict=False):
        send(topic, value, key, number)


def _send_columns(given: Parameters) -> None:
    keys, values = read_columns(Path(given["records"]), given["count"])
    topic, warm = given["topic"], given["warm"]
    clock = Stopwatch()
    with _producer(given) as producer:
        producer.send_batch(topic, values[:warm], keys[:warm])
        producer.flush(WAIT)
        clock.start()
        for start in range(warm, len(values), ROWS):
            rows = slice(start, start + ROWS)
            producer.send_batch(topic, values[rows], keys[rows])
        producer.flush(WAIT)
        clock.stop()
        clock.tell(len(values) - warm)


def _send_arrow(given: Parameters) -> None:
    keys, values = (
        _array(lengths.tolist(), blob)
        for lengths, blob in read_blobs(Path(given["records"]), given["count"])
    )
    topic, warm = given["topic"], given["warm"]
    clock = Stopwatch()
    with _producer(given) as producer:
        producer.send_batch(topic, values.slice(0, warm), keys.slice(0, warm))
        producer.flush(WAIT)
        clock.start()
        for start in range(warm, len(values), ROWS):
            producer.send_batch(topic, values.slice(start, ROWS), keys.slice(start, ROWS))
        producer.flush(WAIT)
        clock.stop()
        clock.tell(len(values) - warm)


def _array(lengths: list[int], blob: bytes) -> "pa.Array":
    """Binary, with 64-bit offsets: a column may be larger than 2 GB."""
    import numpy as np
    import pyarrow as pa

    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(blob)]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def consume(given: Parameters) -> None:
    """`how`: "records" (one object at a time), "poll" (lists of them), "columns", "arrow"."""
    ways = {
        "records": _iterate,
        "poll": _poll,
        "columns": _read_columns,
        "arrow": _read_arrow,
    }
    topic, count = given["topic"], given["count"]
    take = ways[given["how"]]
    clock = Stopwatch()
    with _consumer(given) as warm:
        warm.assign(warm.partitions_of(topic))
        take(warm, min(given["warm"], count))
    with _consumer(given) as consumer:
        partitions = consumer.partitions_of(topic)
        clock.start()
        consumer.assign(partitions)
        taken, size = take(consumer, count)
        clock.stop()
        clock.tell(taken, bytes=size, end=_end(consumer, partitions))


def _consumer(given: Parameters) -> Consumer:
    return Consumer(zookeeper=given["address"], **given.get("options", {}))


def _end(consumer: Consumer, partitions: list[TopicPartition]) -> int:
    """How many records the log has in all, whether they were read or not."""
    return sum(consumer.end_offset(partition) or 0 for partition in partitions)


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


if __name__ == "__main__":
    main({"produce": produce, "consume": consume})
