"""Bytes that nobody wrote: the same value as other readers see, or a bad row; and nothing else."""

import random
from typing import Any

import pytest

from folkmoot.schemas.avro.identity import canonical, parse
from folkmoot.schemas.avro.parsed import ParsedSchema
from folkmoot.schemas.columns.deserializer import ColumnDeserializer
from folkmoot.schemas.values.decoding import BROKEN, Decode, decoder
from tests.schemas.columns import generated
from tests.schemas.columns.generated import Schemas, framed
from tests.schemas.columns.lookup import Known
from tests.seeds import fixed_seed

ROWS = 40
ODD = (b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x80" * 12, b"\xfe\xff\xff\xff\x0f", b"\x01", b"\x00")


def damaged(chance: random.Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(chance.randint(1, 3)):
        place = chance.randint(0, len(data))
        match chance.randrange(5):
            case 0:
                del data[place:]
            case 1:
                data[place:place] = chance.choice(ODD)
            case 2:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case 3:
                data += chance.randbytes(chance.randint(1, 4))
            case 4:
                data[place : place + chance.randint(1, 4)] = b""
    return bytes(data)


def tried(chance: random.Random) -> tuple[int, int]:
    """One pair of schemas with ROWS damaged values. → how many are read all the same, and in all."""
    schemas = Schemas(chance)
    writer = canonical(schemas.record())
    reader = (
        canonical(schemas.reader(ParsedSchema(writer).root)) if chance.random() < 0.7 else writer
    )
    schema, root = parse(writer), ParsedSchema(writer).root
    bodies = [
        damaged(chance, generated.body(schema, generated.value_of(chance, root)))
        for _ in range(ROWS)
    ]
    values = [framed(1, body) for body in bodies]
    columns = ColumnDeserializer(Known([writer]), reader)
    batch, bad = columns.decode(values)
    batch.validate(full=True)
    failed = {row.row for row in bad}
    parsed, decode = ParsedSchema(reader), decoder(writer, reader)
    for row, body in enumerate(bodies):
        if row in failed:
            assert not is_value(decode, body), (writer, reader, body)
            continue
        one = batch.slice(row, 1)
        try:
            wanted = generated.expected(parsed, parsed.root, decode(body, 0)[0])
            seen = generated.from_arrow(parsed, parsed.root, one.to_pylist()[0])
        except (*BROKEN, OverflowError):
            continue  # a time that Python has no room for
        assert seen == wanted, (writer, reader, body)
        if reader == writer:
            same_as_fastavro(schema, parsed, body, seen)
    return ROWS - len(bad), ROWS


def is_value(decode: Decode, body: bytes) -> bool:
    """Whether the bytes are one value, as single ones are read."""
    try:
        return decode(body, 0)[1] == len(body)
    except BROKEN:
        return False


def same_as_fastavro(schema: Any, parsed: ParsedSchema, body: bytes, seen: Any) -> None:
    try:
        value = generated.read(schema, body)
    except Exception:
        return
    assert seen == generated.expected(parsed, parsed.root, value), (schema, body)


def test_damaged_values_are_read_as_by_others_or_named() -> None:
    chance = random.Random(fixed_seed())
    good, rows = (sum(each) for each in zip(*(tried(chance) for _ in range(40)), strict=True))
    assert 0 < good < rows


@pytest.mark.schemas
@pytest.mark.timeout(600)
def test_200_000_damaged_values_are_read_as_by_others_or_named() -> None:
    chance = random.Random(fixed_seed())
    for _ in range(200_000 // ROWS):
        tried(chance)
