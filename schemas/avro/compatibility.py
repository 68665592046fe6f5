"""Which schema reads what another wrote."""

from collections.abc import Sequence

from msgspec import Struct

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
"""What new schemas of a subject owe to the older ones; without _TRANSITIVE only to the last."""


class Finding(Struct, frozen=True):
    """One place where a reader's schema does not fit a writer's, or means something else.

    `kind` is Avro's name of it (`READER_FIELD_MISSING_DEFAULT_VALUE`), `path` a JSON pointer into the
    reader's schema and `writer_path` one into the writer's; `message` says what to do. A `warning` can
    be read, but may mean something else.
    """

    kind: str
    path: str
    writer_path: str
    message: str
    warning: bool = False


def compatible(reader: str, writer: str) -> list[Finding]:
    """What keeps `reader` from reading what `writer` wrote; both resolved texts.

    Empty, or warnings only: everything can be read.
    """
    raise NotImplementedError("schemas.avro is being built")


def judge(level: str, new: str, previous: Sequence[str]) -> list[Finding]:
    """What keeps `new` from following `previous` (oldest first) at one of the LEVELS; resolved texts.

    Raises InvalidCompatibility for a level that does not exist.
    """
    raise NotImplementedError("schemas.avro is being built")
