"""Confluent's wire format: byte 0, the schema's id in four bytes, the Avro body."""

import struct

from folkmoot.protocol.errors import SerializationError

MAGIC = 0
FRAME = struct.Struct(">BI")
"""Magic byte and schema id, before the body of every value."""


def schema_id(value: bytes) -> int:
    """The id of the schema that a value was written with. Raises SerializationError."""
    if len(value) < FRAME.size:
        raise SerializationError(
            f"{len(value)} bytes are too few for a value written with a schema: {value[:16].hex()}"
        )
    magic, number = FRAME.unpack_from(value)
    if magic != MAGIC:
        raise SerializationError(
            f"a value written with a schema begins with byte {MAGIC}, not {magic}: "
            f"{value[:16].hex()}"
        )
    return int(number)
