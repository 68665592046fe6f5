"""Files with a group's offsets: lines of topic,partition,offset,topic_id, or the same as JSON.

The id is that of the topic: offsets mean nothing in a topic that was deleted and made anew. It may be
left out, and so may the line with the columns' names, so that what other tools write is read as well.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from folkmoot.console.files import read_text
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.names import check_name
from folkmoot.protocol.records import TopicPartition

COLUMNS: Final = ("topic", "partition", "offset", "topic_id")

GroupOffsets = tuple[dict[TopicPartition, int], dict[TopicPartition, str]]
"""Offsets, and the topics' ids where they are known."""


def format_offsets(offsets: Mapping[TopicPartition, int], ids: Mapping[str, str], form: str) -> str:
    """The file's contents, `form` csv or json."""
    rows = [(*each, offset, ids.get(each.topic, "")) for each, offset in sorted(offsets.items())]
    if form == "json":
        objects = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        return json.dumps(objects, indent=2) + "\n"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    return text.getvalue()


def read(file: str) -> GroupOffsets:
    """Read the offsets of a file; - is the standard input. Raises ConfigError."""
    text = read_text(file)
    offsets: dict[TopicPartition, int] = {}
    ids: dict[TopicPartition, str] = {}
    for where, row in _rows(text, file):
        partition, offset, topic_id = _row(row, f"{file}, {where}")
        if partition in offsets:
            raise ConfigError(f"{file} names {partition} twice: name each partition once")
        offsets[partition] = offset
        if topic_id:
            ids[partition] = topic_id
    if not offsets:
        raise ConfigError(f"{file} names no partition: is it what `group export` wrote?")
    return offsets, ids


def _rows(text: str, file: str) -> Iterable[tuple[str, list[Any]]]:
    if not text.lstrip().startswith("["):
        try:
            for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
                if row and tuple(row) not in (COLUMNS, COLUMNS[:3]):
                    yield f"line {number}", row
        except csv.Error as error:
            raise ConfigError(f"{file} has no lines of {', '.join(COLUMNS)}: {error}") from None
        return
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no JSON: {error}") from None
    for number, each in enumerate(found, start=1):
        row = [each.get(name, "") for name in COLUMNS] if isinstance(each, dict) else []
        yield f"entry {number}", row


def _row(row: list[Any], where: str) -> tuple[TopicPartition, int, str]:
    try:
        topic, partition, offset, *extra = row
        found = TopicPartition(check_name("topic", str(topic)), _number(partition))
        if len(extra) > 1:
            raise ValueError
        return found, _number(offset), str(extra[0]) if extra else ""
    except (ValueError, TypeError):
        raise ConfigError(
            f"{where} is not understood: it must have {', '.join(COLUMNS)} (the last may be missing)"
        ) from None


def _number(cell: object) -> int:
    """A whole number from 0 on, as JSON or as digits. Raises ValueError for 1.5, true and the like."""
    if type(cell) is int or (isinstance(cell, str) and cell.strip().isascii()):
        number = int(cell)
        if number >= 0:
            return number
    raise ValueError
