"""Which types of a reader's schema can read which of a writer's.

Two types are a pair. A pair may need others: those of fields, items and branches. It is readable
until something in it proves that it is not. Then the pairs that need it are looked at again. So a
type that contains itself needs no assumption, and a long chain of types needs no recursion.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.matching import candidates, faults, kind_of, missing_fields, sources
from folkmoot.schemas.avro.parsed import ParsedSchema

MAX_STEPS = 300_000
"""Types that are compared, in a second or two. Two unions of 500 types each need as many."""


class TooManyPairs(Exception):
    """Two schemas have more pairs of types than are compared."""


class Pair(NamedTuple):
    """A type of each schema, and the JSON pointers to them, from the pair that needs this one."""

    reader: Json
    writer: Json
    path: str = ""
    writer_path: str = ""

    @property
    def key(self) -> tuple[int, int]:
        return id(self.reader), id(self.writer)

    def within(self, other: "Pair") -> "Pair":
        """The same with the pointers that start where those of `other` do."""
        return self._replace(
            path=other.path + self.path, writer_path=other.writer_path + self.writer_path
        )


class Verdicts:
    """The verdicts about all pairs of two schemas that meet. Types are as `ParsedSchema.of` has them."""

    def __init__(self, reader: ParsedSchema, writer: ParsedSchema) -> None:
        """Raises TooManyPairs."""
        self._reader = reader
        self._writer = writer
        self.root = Pair(reader.of(reader.root), writer.of(writer.root))
        self.steps = 0
        self._unreadable: set[tuple[int, int]] = set()
        self._decide()

    def is_readable(self, pair: Pair) -> bool:
        """Return whether the pair's reader can read everything that its writer writes."""
        return pair.key not in self._unreadable

    def best(self, pair: Pair) -> Pair | None:
        """The branch of a reader's union for a writer's type: the best that can read all of it.

        If none can, the best that might read some of it.
        """
        branches = list(self.parts(pair))
        return next(filter(self.is_readable, branches), branches[0] if branches else None)

    def parts(self, pair: Pair) -> Iterator[Pair]:
        """The pairs that a pair without faults needs: all of them, or one if it `is_choice`."""
        reader, writer = pair.reader, pair.writer
        if isinstance(writer, list):
            for index, branch in enumerate(writer):
                yield Pair(reader, self._writer.of(branch), "", f"/{index}")
        elif isinstance(reader, list):
            branches = [self._reader.of(each) for each in reader]
            for index in candidates(writer, branches):
                yield Pair(branches[index], writer, f"/{index}", "")
        elif kind_of(reader) == kind_of(writer):
            if reader["type"] == "array":
                yield self._pair(reader["items"], writer["items"], "/items", "/items")
            elif reader["type"] == "map":
                yield self._pair(reader["values"], writer["values"], "/values", "/values")
            elif kind_of(reader) == "record":
                yield from self._fields(reader, writer)

    def _fields(self, reader: Json, writer: Json) -> Iterator[Pair]:
        reader_indexes = sources(writer, reader)
        writer_indexes = {field["name"]: index for index, field in enumerate(writer["fields"])}
        for name, index in sorted(reader_indexes.items(), key=lambda item: item[1]):
            yield self._pair(
                reader["fields"][index]["type"],
                writer["fields"][writer_indexes[name]]["type"],
                f"/fields/{index}/type",
                f"/fields/{writer_indexes[name]}/type",
            )

    def _pair(self, reader: Json, writer: Json, path: str, writer_path: str) -> Pair:
        return Pair(self._reader.of(reader), self._writer.of(writer), path, writer_path)

    def _decide(self) -> None:
        needed_by: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        spare: dict[tuple[int, int], int] = {}  # how many of its parts a pair may do without
        failed = []
        open_pairs = [self.root]
        while open_pairs:
            pair = open_pairs.pop()
            if pair.key in spare:
                continue
            wrong = not is_union(pair) and bool(faults(pair.reader, pair.writer))
            parts = [] if wrong else list(self.parts(pair))
            self.steps += 1 + (len(pair.reader) if is_choice(pair) else len(parts))
            if self.steps > MAX_STEPS:
                raise TooManyPairs
            spare[pair.key] = len(parts) - 1 if is_choice(pair) else 0
            if wrong or spare[pair.key] < 0 or missing_fields(pair.reader, pair.writer):
                failed.append(pair.key)
            for part in parts:
                needed_by[part.key].append(pair.key)
            open_pairs.extend(parts)
        while failed:
            key = failed.pop()
            if key in self._unreadable:
                continue
            self._unreadable.add(key)
            for user in needed_by[key]:
                spare[user] -= 1
                if spare[user] < 0:
                    failed.append(user)


def is_choice(pair: Pair) -> bool:
    """Return whether one of the pair's parts is enough."""
    return isinstance(pair.reader, list) and not isinstance(pair.writer, list)


def is_union(pair: Pair) -> bool:
    """Return whether one of the two types is a union."""
    return isinstance(pair.reader, list) or isinstance(pair.writer, list)
