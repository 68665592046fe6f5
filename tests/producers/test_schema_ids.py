"""What a batch's header says of the schemas of its values."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from folkmoot.producers.columns import RecordColumns
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import NO_SCHEMA, NO_VALUES
from folkmoot.protocol.errors import SchemaRefused
from tests.producers.appenders import Owner, each_appender
from tests.producers.parts import Bench, values
from tests.sites import make_site


def framed(number: int, body: bytes = b"body") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def header_id(owner: Owner) -> int:
    ((builder,),) = owner.batches().values()
    return batch_header.check(batch_header.seal(builder.body())).schema_id


@each_appender
@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([framed(7)], 7),
        ([framed(7), framed(7), framed(7)], 7),
        ([framed(2**31 - 1, b"")], 2**31 - 1),
        ([None, framed(7), None], 7),
        ([framed(7), None], 7),
        ([None, None], NO_VALUES),
        ([framed(7), framed(8)], NO_SCHEMA),
        ([framed(7), framed(8), framed(7), framed(7)], NO_SCHEMA),
        ([framed(7), b"\1" + framed(7)[1:]], NO_SCHEMA),
        ([framed(7), b""], NO_SCHEMA),
        ([framed(0)], NO_SCHEMA),
        ([framed(2**31)], NO_SCHEMA),
        ([framed(NO_VALUES), framed(NO_VALUES)], NO_SCHEMA),
        ([framed(7)[:4]], NO_SCHEMA),
    ],
)
def test_a_batch_says_the_schema_that_all_its_values_say(
    implementation: Any, sent: list[bytes | None], said: int
) -> None:
    one_by_one = Owner(implementation, 1, framed=True)
    for value in sent:
        one_by_one.appender.send("t", value)
    assert header_id(one_by_one) == said
    for given in (sent, pa.array(sent, pa.binary())):
        together = Owner(implementation, 1)
        together.appender.send_columns("t", RecordColumns(given, framed=True), 0)
        assert header_id(together) == said


@each_appender
def test_values_of_nobody_who_writes_ids_say_none_whatever_they_begin_with(
    implementation: Any,
) -> None:
    owner = Owner(implementation, 1)
    owner.appender.send("t", framed(7))
    owner.appender.send_columns("t", RecordColumns([framed(7), framed(7)]), 0)
    assert header_id(owner) == NO_SCHEMA


@each_appender
@pytest.mark.parametrize("framed_first", [True, False])
def test_one_value_of_nobody_who_writes_ids_among_others_takes_the_id_away(
    implementation: Any, framed_first: bool
) -> None:
    owner = Owner(implementation, 1)
    for with_ids in (framed_first, not framed_first):
        owner.appender.send_columns("t", RecordColumns([framed(7)] * 3, framed=with_ids), 0)
    assert header_id(owner) == NO_SCHEMA


class Framing:
    writes_schema_id = True

    def serialize(self, _topic: str, value: bytes) -> bytes:
        return value


def test_a_producer_takes_ids_from_a_serialiser_that_says_it_writes_them() -> None:
    bench = Bench(value_serializer=Framing())
    bench.stage(framed(7))
    bench.take()
    ((_, shipment),) = bench.ship(hurry=True)
    assert [batch_header.check(each).schema_id for each in shipment.payloads] == [7]
    bench = Bench(value_serializer=bytes)
    bench.stage(framed(7))
    bench.take()
    ((_, shipment),) = bench.ship(hurry=True)
    assert [batch_header.check(each).schema_id for each in shipment.payloads] == [NO_SCHEMA]


TABLES_OF_ITS_OWN = """
from folkmoot.producers.columns import table_serializer
class Own:
    writes_schema_id = True
own = Own()
assert table_serializer(own) is own
"""


@pytest.mark.parametrize("extras", [(), ("arrow",), ("avro",)])
def test_a_serialiser_of_ones_own_needs_no_extra_for_avro(
    extras: tuple[str, ...], tmp_path: Path
) -> None:
    site = make_site(tmp_path / "site", *extras)
    command = [sys.executable, "-S", "-c", TABLES_OF_ITS_OWN]  # without site-packages
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(site)}, check=True)


def test_a_refused_batch_of_several_schemas_is_sent_in_parts_of_one_each_in_order() -> None:
    bench = Bench(value_serializer=Framing())
    sent = [framed(number, b"%d" % place) for place, number in enumerate([7, 7, 7, 8, 8, 9])]
    deliveries = [bench.stage(value) for value in sent]
    bench.take()
    taken: list[bytes] = []
    said: list[int] = []
    for _ in range(20):
        shipments = bench.ship(hurry=True)
        for number, shipment in shipments:
            (payload,) = shipment.payloads
            said.append(batch_header.check(payload).schema_id)
            refused = said[-1] not in (7, 8)
            if not refused:
                taken += values(shipment)
            bench.answer(number, shipment, SchemaRefused.code if refused else 0)
        bench.now += 2.0
    assert taken == sent[:-1]
    assert said[0] == NO_SCHEMA
    errors = [delivery.exception(0) for delivery in deliveries]
    assert [type(error) for error in errors] == [type(None)] * 5 + [SchemaRefused]


def test_a_refused_batch_that_says_one_schema_fails_at_once() -> None:
    for sent, option in (([framed(7)] * 4, Framing()), ([b"plain"] * 4, None)):
        bench = Bench(value_serializer=option)
        deliveries = [bench.stage(value) for value in sent]
        bench.take()
        ((number, shipment),) = bench.ship(hurry=True)
        bench.answer(number, shipment, SchemaRefused.code)
        assert all(isinstance(each.exception(0), SchemaRefused) for each in deliveries)
        assert bench.ship(hurry=True) == []
