"""Columns have what readers of single values see, whatever the schemas, and whoever runs the program."""

import random
from typing import Any

import pytest

from folkmoot.schemas.avro.identity import canonical, parse
from folkmoot.schemas.columns import deserializer, interpreter, serializer
from folkmoot.schemas.columns.deserializer import ColumnDeserializer
from folkmoot.schemas.columns.layout import Parsed
from folkmoot.schemas.columns.serializer import ColumnEncoder
from folkmoot.schemas.values.decoding import BROKEN, decoder
from tests.schemas.columns import generated
from tests.schemas.columns.generated import Schemas, framed
from tests.schemas.columns.lookup import Known
from tests.seeds import fixed_seed

PAIRS = 150
VALUES = 8


@pytest.fixture(params=["as installed", "plain"])
def interpreters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(deserializer, "_Decoder", interpreter.Decoder)
        monkeypatch.setattr(serializer, "_Encoder", interpreter.Encoder)


@pytest.mark.usefixtures("interpreters")
def test_random_values_are_in_columns_what_they_are_one_by_one() -> None:
    chance = random.Random(fixed_seed())
    for _ in range(PAIRS):
        schemas = Schemas(chance)
        writers = [canonical(schemas.record())]
        reader = canonical(schemas.reader(Parsed(writers[0]).root))
        values = written(chance, writers[0], 1)
        batch, bad = ColumnDeserializer(Known(writers), reader).decode(values)
        check(writers[0], reader, values, batch, {row.row: row.error for row in bad})


def written(chance: random.Random, text: str, number: int) -> list[bytes]:
    schema = parse(text)
    plain = Parsed(text).root
    return [
        framed(number, generated.body(schema, generated.value_of(chance, plain)))
        for _ in range(VALUES)
    ]


def check(writer: str, reader: str, values: list[bytes], batch: Any, bad: dict[int, str]) -> None:
    parsed, decode = Parsed(reader), decoder(writer, reader)
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


@pytest.mark.usefixtures("interpreters")
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
