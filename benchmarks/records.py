"""The records that are sent: the same for every system, made and written to files before any clock starts.

Every value is different from all others. The sets:

- `small`: 100 bytes like JSON: an id of 32 random hexadecimal digits, a word of 16, a random price, a
  time; keys of 4,000 different.
- `unique`: the same values, every key different.
- `large`: 1,000 bytes of JSON, a third of it random hexadecimal, the rest words; keys of 4,000.
- `flights`: the departures from New York in 2013 as JSON, keyed by tail number.
"""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from benchmarks.clients.program import read_blobs, read_columns, write_columns
from folkmoot.console.demo.flights import FLIGHTS, find_archive

KEYS: Final = 4_000
SetName = Literal["small", "unique", "large", "flights"]

_WORDS: Final = (
    *("search", "open", "view", "compare", "basket", "remove", "checkout", "pay", "return"),
    *("rate", "share", "follow", "message", "login", "logout", "settings"),
)


@dataclass(frozen=True)
class RecordSet:
    """A file of records: the first `count` of them are sent."""

    name: SetName
    path: Path
    count: int

    def payload(self, count: int) -> tuple[int, int]:
        """The bytes of the first `count` keys, and of the values."""
        keys, values = (sum(lengths) for lengths, _ in read_blobs(self.path, count))
        return keys, values


class RecordSets:
    """Makes sets of records in a folder, each once, from one seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._sets: dict[tuple[SetName, int], RecordSet] = {}

    def get(self, name: SetName, count: int) -> RecordSet:
        """A set of that many records, or as many as there are flights."""
        if name == "flights":
            count = min(count, FLIGHTS)
        record_set = self._sets.get((name, count))
        if record_set is None:
            record_set = self._sets[name, count] = self._create(name, count)
        return record_set

    def _create(self, name: SetName, count: int) -> RecordSet:
        random = np.random.default_rng(self._seed)
        keys, values = _GENERATORS[name](random, count)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}-{count}"
        write_columns(path, keys, values)
        return RecordSet(name, path, count)


def write_lines(records: RecordSet, path: Path, most: int) -> Path:
    """The first values, one a line, as Kafka's own tool reads them."""
    _, values = read_columns(records.path, min(most, records.count))
    path.write_bytes(b"\n".join(values) + b"\n")
    return path


def _random_keys(random: np.random.Generator, count: int) -> list[bytes]:
    return [b"user-%04d" % number for number in random.integers(0, KEYS, count).tolist()]


def _hexadecimal(random: np.random.Generator, count: int, width: int) -> list[bytes]:
    digits: NDArray[np.uint8] = np.frombuffer(b"0123456789abcdef", np.uint8)
    table = digits[random.integers(0, 16, (count, width), dtype=np.uint8)]
    joined = table.tobytes()
    return [joined[start : start + width] for start in range(0, count * width, width)]


def _small(random: np.random.Generator, count: int) -> tuple[list[bytes], list[bytes]]:
    words = [b"%-10s" % word.encode() for word in _WORDS]
    values = [
        b'{"id":"%b","action":"%b","price":%04d.%02d,"time":17600%08d}'
        % (unique, words[word], price // 100, price % 100, number * 7)
        for number, (unique, word, price) in enumerate(
            zip(
                _hexadecimal(random, count, 32),
                random.integers(0, len(words), count).tolist(),
                random.integers(0, 1_000_000, count).tolist(),
                strict=True,
            )
        )
    ]
    return _random_keys(random, count), values


def _unique(random: np.random.Generator, count: int) -> tuple[list[bytes], list[bytes]]:
    _, values = _small(random, count)
    shuffled = random.permutation(count).tolist()
    return [b"order-%09d" % number for number in shuffled], values


def _large(random: np.random.Generator, count: int) -> tuple[list[bytes], list[bytes]]:
    words = [word.encode() for word in _WORDS]
    word_indexes = random.integers(0, len(words), (count, 90)).tolist()
    values = []
    for number, (unique, indexes) in enumerate(
        zip(_hexadecimal(random, count, 320), word_indexes, strict=True)
    ):
        text = b" ".join([words[index] for index in indexes])
        head = b'{"id":"%b","n":%08d,"text":"' % (unique, number)
        values.append(head + text[: 998 - len(head)].ljust(998 - len(head)) + b'"}')
    return _random_keys(random, count), values


def _flights(_random: np.random.Generator, count: int) -> tuple[list[bytes], list[bytes]]:
    keys, values = [], []
    with ZipFile(find_archive()) as files:
        (name,) = (each for each in files.namelist() if each.endswith(".csv"))
        with files.open(name) as file, io.TextIOWrapper(file, "utf-8", newline="") as text:
            for row in csv.DictReader(text):
                keys.append(row["tailnum"].encode())
                values.append(json.dumps(row, separators=(",", ":")).encode())
                if len(values) == count:
                    break
    return keys, values


_Generator = Callable[[np.random.Generator, int], tuple[list[bytes], list[bytes]]]
_GENERATORS: Final[dict[SetName, _Generator]] = {
    "small": _small,
    "unique": _unique,
    "large": _large,
    "flights": _flights,
}
