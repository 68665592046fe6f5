"""Which schema a value is written with, under which subject, and what a class makes of it again."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from msgspec import Meta, Struct, defstruct

from folkmoot.protocol.errors import (
    ConfigError,
    IncompatibleSchema,
    InvalidSchema,
    SchemaNotFound,
    SerializationError,
    SubjectNotFound,
)
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values import deserializer, serializer
from folkmoot.schemas.values.derivation import avro_schema
from folkmoot.schemas.values.deserializer import AvroDeserializer
from folkmoot.schemas.values.serialization import WouldWait
from folkmoot.schemas.values.serializer import AvroSerializer
from folkmoot.schemas.values.wire import schema_id
from tests.schemas.sessions import CountingSession, memory_session

LOCAL = datetime.fromisoformat("2020-01-01")
Price = Annotated[
    Decimal,
    Meta(extra={"avro": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}),
]


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    what: str
    price: Price
    count: Annotated[int, Meta(extra={"avro": "int"})] = 1


class Refund(Struct, rename="camel"):
    order_id: UUID
    at: datetime


@dataclass(kw_only=True)
class Order:
    id: UUID = field(default_factory=uuid4)
    lines: list[Line]
    tags: dict[str, str] = field(default_factory=dict)
    color: Color = Color.RED
    day: date = date(2020, 1, 1)
    at: time = time(1, 2)
    note: str | None = None
    blob: bytes = b"\xff"
    what: Line | Refund | None = None
    parent: "Order | None" = None
    local: Annotated[datetime, Meta(tz=False)] = LOCAL


class Slip(Struct):
    """What some reader wants of an order."""

    note: str | None
    color: Color
    paid: bool = False


@dataclass
class Plain:
    x: int


@dataclass
class Other:
    y: str


# -- classes ------------------------------------------------------------------------------------------


def test_objects_of_classes_come_back_as_they_were(registry: SchemaRegistry) -> None:
    refund = Refund(uuid4(), datetime(2026, 5, 1, 1, 2, 3, 4, UTC))
    order = Order(
        lines=[Line("tea", Decimal("1.25")), Line("rum", Decimal("3.00"), 2)],
        color=Color.BLUE,
        what=refund,
        parent=Order(lines=[], what=Line("x", Decimal("0.00"))),
    )
    data = AvroSerializer(registry, Order).serialize("orders", order)
    assert AvroDeserializer(registry, Order)(data) == order
    assert registry.subjects() == ["orders-value"]


def test_a_class_reads_what_it_needs_of_what_another_wrote(registry: SchemaRegistry) -> None:
    data = AvroSerializer(registry, Order).serialize("orders", Order(lines=[], note="!"))
    assert AvroDeserializer(registry, Slip)(data) == Slip("!", Color.RED)
    assert AvroDeserializer(registry)(data)["color"] == "red"


def test_a_derived_schema_has_the_defaults_of_the_class() -> None:
    schema = json.loads(avro_schema(Order))
    defaults = {each["name"]: each["default"] for each in schema["fields"] if "default" in each}
    assert defaults == {
        "tags": {},
        "color": "red",
        "day": 18262,
        "at": 3_720_000_000,
        "note": None,
        "blob": "\u00ff",
        "what": None,
        "parent": None,
        "local": 1_577_836_800_000_000,
    }


def test_a_schema_that_is_said_by_hand_for_several_fields_stays_as_it_was_given() -> None:
    """Their defaults want its branches in other orders, and a class derived before changes no other."""
    given = ["null", "int"]
    number = Annotated[Any, Meta(extra={"avro": given})]
    made = defstruct("Made", [("one", number, 1), ("none", number, None)])
    types = {each["name"]: each["type"] for each in json.loads(avro_schema(made))["fields"]}
    assert types == {"one": ["int", "null"], "none": ["null", "int"]}
    assert given == ["null", "int"]


class Level(Enum):
    LOW = 1


@dataclass
class Untyped:
    x: Any


@dataclass
class Amount:
    x: Decimal


@dataclass
class Fancy:
    x: Plain = field(default_factory=lambda: Plain(1))
    y: complex = 1j


def test_a_class_that_refuses_what_was_read_is_named(registry: SchemaRegistry) -> None:
    class Picky(Struct):
        x: int

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x is negative")

    data = AvroSerializer(registry, Plain).serialize("t", Plain(-1))
    with pytest.raises(SerializationError, match=r"Picky refuses it: .*x is negative"):
        AvroDeserializer(registry, Picky)(data)


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Untyped, r"Untyped\.x: typing\.Any says no Avro type"),
        (Amount, r"Amount\.x: .*Decimal.* says no Avro type"),
        (Fancy, r"Fancy\.y: .*complex"),
        (dict[int, str], "says no Avro type"),
        (tuple[int, str], "says no Avro type"),
        (Level, "the values of Level are not all texts"),
    ],
)
def test_a_class_from_which_no_schema_follows_is_refused(annotation: Any, said: str) -> None:
    with pytest.raises(InvalidSchema, match=said):
        avro_schema(annotation)


def test_two_classes_of_one_name_are_refused() -> None:
    def another() -> type:
        class Line(Struct):
            x: int

        return Line

    with pytest.raises(InvalidSchema, match="two classes are called Line"):
        avro_schema(Line | another())


# -- subjects and versions ----------------------------------------------------------------------------

NAMED = {"type": "record", "name": "R", "namespace": "n", "fields": [{"name": "x", "type": "long"}]}


@pytest.mark.parametrize(
    ("strategy", "field_", "subject"),
    [
        ("topic", "value", "t-value"),
        ("topic", "key", "t-key"),
        ("record", "value", "n.R"),
        ("topic-record", "key", "t-n.R"),
    ],
)
def test_the_strategy_names_the_subject(
    registry: SchemaRegistry, strategy: Any, field_: Any, subject: str
) -> None:
    made = AvroSerializer(registry, NAMED, strategy=strategy).bind(field_, lambda: True)
    made.serialize("t", {"x": 1})
    assert registry.subjects() == [subject]


def test_values_of_several_classes_have_their_own_subjects(registry: SchemaRegistry) -> None:
    made = AvroSerializer(registry, strategy="topic-record")
    read = AvroDeserializer(registry)
    assert read(made.serialize("t", Plain(1))) == {"x": 1}
    assert read(made.serialize("t", Other("a"))) == {"y": "a"}
    assert registry.subjects() == ["t-Other", "t-Plain"]
    with pytest.raises(InvalidSchema, match="dict"):
        made.serialize("t", {"x": 1})


def test_without_registering_the_schema_must_be_there(registry: SchemaRegistry) -> None:
    made = AvroSerializer(registry, NAMED, register=False)
    with pytest.raises(SubjectNotFound):
        made.serialize("t", {"x": 1})
    registry.register("t-value", NAMED)
    assert schema_id(made.serialize("t", {"x": 1})) == registry.version("t-value", 1).id
    other = {**NAMED, "fields": []}
    with pytest.raises(SchemaNotFound):
        AvroSerializer(registry, other, register=False).serialize("t", {})


def evolved() -> Any:
    return {**NAMED, "fields": [*NAMED["fields"], {"name": "y", "type": "int", "default": 7}]}


def test_latest_a_version_or_an_id_say_what_is_written(registry: SchemaRegistry) -> None:
    first, second = (registry.register("t-value", each).id for each in (NAMED, evolved()))
    read = AvroDeserializer(registry)

    def written(**how: Any) -> tuple[int | UUID, Any]:
        data = AvroSerializer(registry, **how).serialize("t", {"x": 1})
        return schema_id(data), read(data)

    assert written(version="latest") == (second, {"x": 1, "y": 7})
    assert written(version=1) == (first, {"x": 1})
    assert written(id=first) == (first, {"x": 1})
    with pytest.raises(SerializationError, match=r"schema 1 of t-value: record n.R has no field"):
        AvroSerializer(registry, version=1).serialize("t", {"x": 1, "y": 2})
    with pytest.raises(SchemaNotFound):
        written(id=77)


def test_a_schema_that_may_not_follow_is_refused_and_nothing_is_kept(
    registry: SchemaRegistry,
) -> None:
    registry.register("t-value", NAMED)
    wrong = {**NAMED, "fields": [{"name": "z", "type": "int"}]}
    made = AvroSerializer(registry, wrong)
    for _ in range(2):
        with pytest.raises(IncompatibleSchema):
            made.serialize("t", {"z": 1})
    assert registry.versions("t-value") == [1]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"strategy": "subject"}, "strategy='subject' is not known"),
        ({"id": 1, "version": 2}, "id and version both say"),
    ],
)
def test_options_that_mean_nothing_are_refused(how: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AvroSerializer(SchemaRegistry(memory_session()), NAMED, **how)


def test_a_strategy_by_record_needs_one(registry: SchemaRegistry) -> None:
    with pytest.raises(ConfigError, match="name the subject after the schema's record"):
        AvroSerializer(registry, '"long"', strategy="record").serialize("t", 1)


# -- waiting and caches -------------------------------------------------------------------------------


def test_where_nobody_may_wait_nothing_is_asked(
    registry: SchemaRegistry, session: CountingSession
) -> None:
    may_wait = False
    made = AvroSerializer(registry, NAMED).bind("value", lambda: may_wait)
    with pytest.raises(WouldWait, match="topic t "):
        made.serialize("t", {"x": 1})
    assert session.asked == 0
    may_wait = True
    assert made.prepare("t") == 1
    may_wait = False
    assert schema_id(made.serialize("t", {"x": 1})) == 1


def test_what_is_kept_is_bounded(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serializer, "MAX_PREPARED", 3)
    monkeypatch.setattr(deserializer, "MAX_CACHED", 3)
    made, read = AvroSerializer(registry), AvroDeserializer(registry)
    classes: list[Callable[[int], Any]] = [type(f"C{number}", (Plain,), {}) for number in range(6)]
    for _ in range(2):
        for number, cls in enumerate(classes):
            assert read(made.serialize(f"t{number}", cls(number))) == {"x": number}
    assert len(made._prepared) == 3
    assert len(read._decoders) == 3
