"""Reading what one schema wrote as another one says: what fastavro needs to do it right."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct


class Reading(Struct, frozen=True):
    """What to hand to fastavro: `fastavro.schemaless_reader(body, reading.writer, reading.reader)`.

    `reader` is None where the writer's schema is the reader's. `finish`, if it is not None, makes the
    value that was meant of the one that fastavro returns.
    """

    writer: Any
    reader: Any | None
    finish: Callable[[Any], Any] | None


def reading(writer: str, reader: str | None = None) -> Reading:
    """How values of the schema `writer` become those of `reader`; both resolved texts.

    Raises InvalidSchema, and IncompatibleSchema where `reader` cannot read what `writer` wrote.
    """
    raise NotImplementedError("schemas.avro is being built")
