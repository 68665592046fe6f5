"""Bytes that were values before they were damaged: the same value as fastavro's, or an error."""

import io
import json
from contextlib import suppress
from random import Random

import fastavro
import pytest

from folkmoot.schemas.values.decoding import BROKEN, decoder
from folkmoot.schemas.values.encoding import encoder
from tests.schemas.values.random_values import Chance, damaged
from tests.seeds import fixed_seed

BODIES = 200_000


@pytest.mark.schemas
def test_damaged_bytes_are_the_value_that_fastavro_reads_or_an_error() -> None:
    """What is an error here is not asked of fastavro: some of it keeps it busy without end."""
    random = Random(fixed_seed())
    tried = read = 0
    while tried < BODIES:
        chance = Chance(random)
        schema = fastavro.parse_schema(json.loads(chance.text))
        encode, decode = encoder(chance.text), decoder(chance.text)
        reader = Chance(random)
        resolve = decoder(chance.text, reader.text)
        for _ in range(10):
            body = encode(chance.value())
            for _ in range(20):
                given = damaged(random, body)
                tried += 1
                with suppress(*BROKEN):
                    resolve(given, 0)
                try:
                    value, end = decode(given, 0)
                except BROKEN:
                    continue
                file = io.BytesIO(given)
                expected = fastavro.schemaless_reader(file, schema, None)
                assert (repr(value), end) == (repr(expected), file.tell()), (chance.text, given)
                read += 1
    assert BODIES / 10 < read < BODIES
