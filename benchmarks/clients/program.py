"""The near end of a client program: it reports when it is ready, waits for the word, and reports its figures.

One JSON object a line: the program writes `{"event": "ready"}`, reads a line, works, and writes
`{"event": "done", ...}`. Nothing but the standard library is imported here.
"""

import gc
import json
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

Parameters = Mapping[str, Any]
Work = Callable[[Parameters], None]

_WIDTH: Final = "I"


def main(verbs: Mapping[str, Work]) -> None:
    """Runs the verb that the first argument names, with the JSON of the second as its parameters."""
    verb, parameters = sys.argv[1], json.loads(sys.argv[2])
    verbs[verb](parameters)


def system(parameters: Parameters) -> Any:
    """The module that has the system's part in `paced.py` and `members.py`."""
    return import_module(f"benchmarks.clients.{parameters['system']}_streams")


def report_event(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


class Stopwatch:
    """Time and own CPU time (all threads) since `start`, which waits for the word to begin."""

    def start(self) -> None:
        gc.collect()
        report_event("ready")
        if not sys.stdin.readline():
            os._exit(1)  # the harness is gone
        self._cpu = time.process_time()
        self._started_at = time.perf_counter()

    def stop(self) -> None:
        self._seconds = time.perf_counter() - self._started_at
        self._cpu = time.process_time() - self._cpu

    def report(self, records: int, **facts: Any) -> None:
        """Reports the figures after `stop`, so that working out the facts costs no time that counts."""
        report_event("done", records=records, seconds=self._seconds, cpu=self._cpu, **facts)


def time_sending(
    parameters: Parameters, columns: Sequence[Any], send: Callable[..., object]
) -> None:
    """Sends the first rows to warm up, then the others by the clock.

    `send` takes the rows of all columns, and returns when they are acknowledged.
    """
    warm = parameters["warm"]
    first, counted = [each[:warm] for each in columns], [each[warm:] for each in columns]
    clock = Stopwatch()
    send(*first)
    clock.start()
    send(*counted)
    clock.stop()
    clock.report(len(counted[0]))


def write_columns(path: Path, keys: list[bytes], values: list[bytes]) -> None:
    """Two columns as a file: a line of JSON, then lengths and bytes of each."""
    blobs = []
    sizes = []
    for column in (keys, values):
        lengths = array(_WIDTH, map(len, column)).tobytes()
        blob = b"".join(column)
        sizes.append([len(lengths), len(blob)])
        blobs += [lengths, blob]
    with path.open("wb") as file:
        file.write(json.dumps(sizes).encode() + b"\n")
        file.writelines(blobs)


def read_columns(path: Path, count: int) -> tuple[list[bytes], list[bytes]]:
    """The first `count` keys and values, each an object of its own, as an application has them."""
    keys, values = (_split(lengths, blob) for lengths, blob in read_blobs(path, count))
    return keys, values


def read_blobs(path: Path, count: int) -> Iterator[tuple["array[int]", bytes]]:
    """Lengths and joined bytes of the first `count` keys, then of the values."""
    with path.open("rb") as file:
        sizes = json.loads(file.readline())
        for lengths_size, blob_size in sizes:
            lengths = array(_WIDTH)
            lengths.frombytes(file.read(lengths_size))
            if len(lengths) < count:
                raise ValueError(f"{path} has {len(lengths)} records, not {count}")
            next_column = file.tell() + blob_size
            del lengths[count:]
            yield lengths, file.read(sum(lengths))
            file.seek(next_column)


def _split(lengths: "array[int]", blob: bytes) -> list[bytes]:
    return [blob[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
