"""Confluent's wire format: byte 0, the schema's id in four bytes, the Avro body.

In its second form byte 1 and the schema's GUID take the place of the id. Either may stand in a header
of the record, with the body alone as the value: readers put it in front first (`prepend_frames`).
"""

import struct
from collections.abc import Sequence
from uuid import UUID

from folkmoot.protocol.errors import SerializationError
from folkmoot.protocol.records import Headers
from folkmoot.schemas.values.serialization import Field

MAGIC = 0
MAGIC_GUID = 1
FRAME = struct.Struct(">BI")
"""Magic byte and schema id, before the body of every value."""
FRAME_GUID = struct.Struct(">B16s")
"""The same with a GUID."""


def schema_id(value: bytes) -> int | UUID:
    """The id, or GUID, of the schema that a value was written with. Raises SerializationError."""
    frame = FRAME_GUID if value[:1] == b"\1" else FRAME
    if len(value) < frame.size:
        raise SerializationError(
            f"{len(value)} bytes are too few for a value written with a schema: {value[:16].hex()}"
        )
    magic, number = frame.unpack_from(value)
    if magic not in (MAGIC, MAGIC_GUID):
        raise SerializationError(
            f"a value written with a schema begins with byte {MAGIC} or {MAGIC_GUID}, not {magic}: "
            f"{value[:16].hex()}"
        )
    return int(number) if magic == MAGIC else UUID(bytes=number)


def header_name(field: Field) -> str:
    """The record's header that may hold what says the schema."""
    return f"__{field}_schema_id"


def prepend_frames(
    field: Field, cells: Sequence[bytes | None], headers: Sequence[Headers] | None
) -> Sequence[bytes | None]:
    """Keys or values, and in front of each what its record's header says of its schema, where one does."""
    marks = frames(field, headers)
    if marks is None:
        return cells
    return [cell if cell is None else mark + cell for mark, cell in zip(marks, cells, strict=True)]


def frames(field: Field, headers: Sequence[Headers] | None) -> list[bytes] | None:
    """The headers with the schema of each record's key or value; None where none does."""
    if headers is None:
        return None
    name = header_name(field)
    marks = [next((mark for key, mark in row if key == name and mark), b"") for row in headers]
    return marks if any(marks) else None
