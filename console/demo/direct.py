"""What the pipeline's table must say: one pass over the CSV, with nothing of the pipeline's in it."""

import csv
import io
import zipfile
from pathlib import Path

Sums = tuple[int, int, int, int]
"""Of a carrier: flights; those with a departure delay; the sum of these delays; cancelled ones."""


def by_carrier(archive: Path, flights: int | None = None) -> dict[str, Sums]:
    """The sums of every carrier over the first `flights` rows, all rows by default."""
    sums: dict[str, Sums] = {}
    with zipfile.ZipFile(archive) as zipped, zipped.open("flights.csv") as raw:
        lines = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        header = next(lines)
        carrier, delay, departure = map(header.index, ("carrier", "dep_delay", "dep_time"))
        for number, line in enumerate(lines):
            if number == flights:
                break
            count, delayed, minutes, cancelled = sums.get(line[carrier], (0, 0, 0, 0))
            if line[delay] != "NA":
                delayed += 1
                minutes += int(line[delay])
            if line[departure] == "NA":
                cancelled += 1
            sums[line[carrier]] = (count + 1, delayed, minutes, cancelled)
    return sums
