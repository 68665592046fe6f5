"""Columns have what readers of single values see, whatever the schemas."""

import random
from decimal import Decimal
from typing import Any

import pytest

from folkmoot.schemas.avro.identity import canonical, parse
from folkmoot.schemas.avro.parsed import ParsedSchema
from folkmoot.schemas.columns.deserializer import ColumnDeserializer
from folkmoot.schemas.columns.serializer import ColumnEncoder
from folkmoot.schemas.values.decoding import BROKEN, decoder
from folkmoot.schemas.values.encoding import encoder
from tests.schemas.columns import generated
from tests.schemas.columns.generated import Schemas, framed
from tests.schemas.columns.lookup import Known
from tests.seeds import fixed_seed

PAIRS = 150
VALUES = 8


def test_random_values_are_in_columns_what_they_are_one_by_one() -> None:
    chance = random.Random(fixed_seed())
    for _ in range(PAIRS):
        schemas = Schemas(chance)
        writers = [canonical(schemas.record())]
        reader = canonical(schemas.reader(ParsedSchema(writers[0]).root))
        values = written(chance, writers[0], 1)
        batch, bad = ColumnDeserializer(Known(writers), reader).decode(values)
        check(writers[0], reader, values, batch, {row.row: row.error for row in bad})


def written(chance: random.Random, text: str, number: int) -> list[bytes]:
    schema = parse(text)
    plain = ParsedSchema(text).root
    return [
        framed(number, generated.body(schema, generated.value_of(chance, plain)))
        for _ in range(VALUES)
    ]


def check(writer: str, reader: str, values: list[bytes], batch: Any, bad: dict[int, str]) -> None:
    parsed, decode = ParsedSchema(reader), decoder(writer, reader)
    batch.validate(full=True)
    for row, (value, seen) in enumerate(zip(values, batch.to_pylist(), strict=True)):
        try:
            wanted = decode(value[5:], 0)[0]
        except BROKEN:
            wanted = None
        assert (row in bad) is (wanted is None), (bad, writer, reader, value)
        if wanted is None:
            assert not any(each is not None for each in seen.values())
            continue
        found = generated.from_arrow(parsed, parsed.root, seen)
        assert found == generated.expected(parsed, parsed.root, wanted), (writer, reader, value)


def test_random_tables_become_the_bytes_that_fastavro_writes() -> None:
    chance = random.Random(fixed_seed())
    for _ in range(PAIRS):
        text = canonical(Schemas(chance).record())
        values = written(chance, text, 1)
        known = Known([text])
        batch = ColumnDeserializer(known, text)(values)
        again = ColumnEncoder(text, 1)
        assert again(batch).to_pylist() == values, text
        assert again(batch.slice(3, 4)).to_pylist() == values[3:7], text


def named(kind: str, name: str, *aliases: str, **more: Any) -> Any:
    return {"type": kind, "name": name, "aliases": aliases} | more


def of(kind: Any, name: str = "f", *aliases: str, **more: Any) -> Any:
    return named("record", "R", fields=[{"name": name, "type": kind, "aliases": aliases} | more])


def time_in(unit: str) -> Any:
    return {"type": "long", "logicalType": f"timestamp-{unit}"}


def digits(precision: int, scale: int) -> Any:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


UUIDS = {"type": "string", "logicalType": "uuid"}
TWO = named("record", "R", fields=[{"name": "a", "type": "int"}, {"name": "b", "type": "int"}])
MAP = {"type": "map", "values": "int"}
ENUM = named("enum", "y.C", symbols=["A"])


@pytest.mark.parametrize(
    ("writer", "reader", "body", "found"),
    [
        (TWO, of("int", "x", "b", "a"), "02 04", 2),  # the first of its aliases
        (of(named("fixed", "x.F", size=1)), of([named("fixed", "x.F", size=2),
         named("fixed", "y.F", size=1)]), "61", b"a"),
        (of(ENUM), of([named("enum", "C", symbols=["X"]),
         named("enum", "z.C", "y.C", symbols=["A"])]), "00", "A"),
        (of("long"), of("float"), encoder('"long"')(2**60 + 2**36 + 1).hex(), float(2**60 + 2**37)),
        (of(UUIDS), of(UUIDS), "40" + b"0123456789abcdef".hex() * 2, None),
        (of(digits(3, 0)), of(digits(3, 0)), "0a 0000000001", Decimal(1)),
        (of(digits(3, 0)), of(digits(3, 0)), "0a ffffffff80", Decimal(-128)),
        (of(["null", "int"]), of(["null", "int"]), "8200 06", 3),  # more bytes than it takes
        (of(["null", "int"]), of(["null", "int"]), "8000", ...),
        (of(MAP), of("int", "z", default=7), "02 02ff 02 00", 7),  # nobody looks at the key
        (of(time_in("micros")), of(time_in("nanos")), "06", 3000),
        (of(time_in("nanos")), of(time_in("micros")), "d00f", None),
        (of(time_in("millis")), of(time_in("nanos")), "feffffffffffffffff01", None),
    ],
)  # fmt: skip
def test_what_readers_may_differ_in_is_the_same_in_columns_and_one_by_one(
    writer: Any, reader: Any, body: str, found: Any
) -> None:
    """`found` None: it is no value; ...: it is null."""
    texts = canonical(writer), canonical(reader)
    data = bytes.fromhex(body)
    batch, bad = ColumnDeserializer(Known(texts[:1]), texts[1]).decode([framed(1, data)])
    assert len(bad) == (found is None), bad
    if found is None:
        with pytest.raises(BROKEN):
            decoder(*texts)(data, 0)
        return
    (one,) = decoder(*texts)(data, 0)[0].values()
    ((column,),) = (each.values() for each in batch.to_pylist())
    if isinstance(column, dict):
        (column,) = (each for each in column.values() if each is not None)
    assert one == (None if found is ... else found)
    assert getattr(column, "value", column) == one  # of nanoseconds: theirs


def test_a_decimal_that_columns_have_no_room_for_is_not_read_in_another_scale() -> None:
    texts = canonical(of(digits(50, 5))), canonical(of(digits(9, 2)))
    ((_, _, error),) = ColumnDeserializer(Known(texts[:1]), texts[1]).decode(
        [framed(1, b"\x04\x01\x00")]
    )[1]
    assert "a decimal of scale 5 cannot be read as one of 2" in error
    assert decoder(*texts)(b"\x04\x01\x00", 0)[0] == {"f": Decimal("0.00256")}


def test_a_precision_that_nobody_could_compute_with_leaves_bytes() -> None:
    text = canonical(of(digits(2**31 - 1, 0)))
    assert decoder(text)(b"\x02\x01", 0)[0] == {"f": b"\x01"}
    assert encoder(text)({"f": b"\x01"}) == b"\x02\x01"


def test_flights_are_what_fastavro_reads_and_writes(flights: tuple[str, list[bytes]]) -> None:
    text, values = flights
    known = Known([text])
    batch = ColumnDeserializer(known, text)(values)
    schema = parse(text)
    assert batch.to_pylist() == [generated.read(schema, value[5:]) for value in values]
    assert ColumnEncoder(text, 1)(batch).to_pylist() == values


def test_values_of_several_writers_stand_in_one_column() -> None:
    old = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
    new = (
        '{"type":"record","name":"R","fields":[{"name":"b","type":"string","default":"-"},'
        '{"name":"a","type":"int"}]}'
    )
    values = [framed(1, b"\x02"), framed(2, b"\x02x\x04"), None, framed(1, b"\x06")]
    batch = ColumnDeserializer(Known([old, new]), 2)(values)
    assert batch.to_pylist() == [
        {"b": "-", "a": 1},
        {"b": "x", "a": 2},
        {"b": None, "a": None},
        {"b": "-", "a": 3},
    ]
