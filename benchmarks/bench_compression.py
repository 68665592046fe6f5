"""What each codec and level costs who produces and who reads, and what it saves, without a broker."""

import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.clients.program import read_columns
from benchmarks.harness import Context, Sample
from benchmarks.records import SetName
from folkmoot.protocol import compression, record_batch
from folkmoot.protocol.batch_header import MAX_BODY_BYTES
from folkmoot.protocol.columns import BinaryColumn, Columns
from folkmoot.protocol.compression import Codec

TITLE: Final = "Codecs and levels"

# What they are called in the table, and about 3 MB of them.
CASES: Final[dict[SetName, tuple[str, int]]] = {
    "small": ("100 B like JSON, a third of it random", 30_000),
    "large": ("1 kB of JSON, a third of it random", 3_000),
    "flights": ("flights as JSON (330 B)", 9_000),
}
BATCH_BYTES: Final = 256 * 1024
LEAST_SECONDS: Final = 0.05
LEVELS: Final[dict[Codec, Sequence[int | None]]] = {
    Codec.ZSTD: (-5, -1, 1, 3, 6, 12, 19),
    Codec.LZ4: (-5, 0, 4, 9, 12),
    Codec.SNAPPY: (None,),
    Codec.GZIP: (1, 6, 9),
}


def run(context: Context) -> None:
    for name, (case, count) in CASES.items():
        count = max(500, int(count * min(1.0, context.scale.seconds)))
        records = context.records.get(name, count)
        bodies = bodies_of(records.path, records.count)
        contenders = {
            _label(codec, level): partial(measure_codec, codec, level, bodies, records.count)
            for codec, levels in LEVELS.items()
            for level in levels
        }
        context.alternate(case, "to compress, CPU s/M records", contenders)
    context.results.notes.append(
        f"CPU of one thread; batches of {BATCH_BYTES // 1024} KiB before compression, keys included. "
        "Compression is bytes before over bytes after."
    )


def _label(codec: Codec, level: int | None) -> str:
    name = codec.name.lower()
    if level is None:
        return name
    usual = level == compression.DEFAULT_LEVELS[codec]
    return f"{name} {level}{' (the default level)' if usual else ''}".replace("-", "−")


def bodies_of(path: Path, count: int) -> list[bytes]:
    keys, values = read_columns(path, count)
    size = sum(map(len, keys)) + sum(map(len, values))
    rows = max(1, BATCH_BYTES * count // size)
    bodies = []
    for start in range(0, count, rows):
        batch_rows = slice(start, start + rows)
        cells = BinaryColumn.of(list(values[batch_rows]))
        stamps = array("q", (1_760_000_000_000 + row // 50 for row in range(len(cells))))
        columns = Columns(len(cells), BinaryColumn.of(list(keys[batch_rows])), cells, stamps)
        bodies.append(b"".join(record_batch.pack(columns).body))
    return bodies


def measure_codec(codec: Codec, level: int | None, bodies: Sequence[bytes], records: int) -> Sample:
    compressed = [compression.compress(codec, body, level) for body in bodies]
    before, after = sum(map(len, bodies)), sum(map(len, compressed))

    def compress() -> None:
        for body in bodies:
            compression.compress(codec, body, level)

    def decompress() -> None:
        for body in compressed:
            compression.decompress(codec, body, MAX_BODY_BYTES)

    facts = {
        "to decompress, CPU s/M records": _seconds(decompress) / records * 1e6,
        "bytes a record": after / records,
        "compression": before / after,
    }
    return Sample(value=_seconds(compress) / records * 1e6, facts=facts)


def _seconds(work: Callable[[], None]) -> float:
    """The CPU that it takes, on average over as many times as are long enough to be measured."""
    started_at, times = time.thread_time(), 0
    while times == 0 or time.thread_time() - started_at < LEAST_SECONDS:
        work()
        times += 1
    return (time.thread_time() - started_at) / times
