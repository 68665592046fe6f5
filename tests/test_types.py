"""What type checkers say of programs that use what is installed: mypy, and pyright as basedpyright has it."""

import inspect
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pyarrow
import pytest

import folkmoot
from folkmoot.protocol import errors
from folkmoot.schemas.avro.identity import Schema
from tests.tree import ROOT

RIGHT = """
import json
from dataclasses import dataclass
from typing import Any, Literal, assert_type

from folkmoot import (
    Admin, AsyncConsumer, AsyncProducer, AvroDeserializer, AvroSerializer, Consumer, Delivery,
    DeserializationError, FolkmootError, Health, Producer, Record, SchemaRegistry, TopicPartition,
)


@dataclass
class Order:
    what: str


def order_of(data: bytes) -> Order:
    return Order(**json.loads(data))


class Registry:
    def serialize(self, topic: str, value: Order, /) -> bytes:
        return value.what.encode()

    def deserialize(self, topic: str, data: bytes, /) -> Order:
        return Order(data.decode())


def begin(consumer: Consumer[str, Order], partitions: list[TopicPartition]) -> None:
    consumer.seek(partitions[0], "earliest")


def told(delivery: Delivery) -> None:
    delivery.done()


def use_them(options: dict[str, Any]) -> None:
    with Consumer(zookeeper="z:1", group="g", topics=["t"]) as plain:
        for record in plain:
            assert_type(record, Record[bytes, bytes])
            assert_type(record.value, bytes | None)
        assert_type(plain.poll(1.0), list[Record[bytes, bytes]])
        assert_type(plain.health(), Health)
    with Consumer(
        zookeeper="z:1", group="g", topics=["t"], on_assign=begin, commit_interval=1,
        key_deserializer=bytes.decode, value_deserializer=order_of,
    ) as typed:
        for each in typed:
            assert_type(each.key, str | None)
            assert_type(each.value, Order | None)
    Consumer(bootstrap=["b:1"], value_deserializer=Registry(), rack="a")
    Consumer(**options)
    with Producer(zookeeper="z:1", acks="all", linger=0, value_serializer=Registry()) as producer:
        producer.send("t", Order("tea"), key=b"k", on_delivery=told)
        producer.send("t", None, key=b"k")
    with Admin(zookeeper="z:1") as admin:
        assert_type(admin.topics(), list[str])


def skip(consumer: Consumer[bytes, Order], error: DeserializationError) -> Literal["skip"]:
    assert_type(error.record, Record[bytes, bytes])
    return "skip"


def with_schemas(registry: SchemaRegistry) -> None:
    orders = AvroSerializer(registry, Order)
    with Producer(zookeeper="z:1", key_serializer=str.encode, value_serializer=orders) as producer:
        producer.send("t", Order("tea"), key="k")
    Producer(zookeeper="z:1", value_serializer=AvroSerializer(registry, version="latest"))
    with Consumer(
        zookeeper="z:1", value_deserializer=AvroDeserializer(registry, Order), on_decode_error=skip,
    ) as consumer:
        for record in consumer:
            assert_type(record.value, Order | None)
    Consumer(zookeeper="z:1", value_deserializer=AvroDeserializer(registry), on_decode_error="raw")


async def await_them() -> None:
    async with AsyncProducer(bootstrap="b:1", key_serializer=str.encode) as producer:
        await (await producer.send("t", b"v", key="k"))
    async with AsyncConsumer(bootstrap="b:1", value_deserializer=order_of) as consumer:
        await consumer.assign([("t", 0)])
        async for record in consumer:
            assert_type(record.value, Order | None)
        try:
            assert_type(await consumer.poll(1.0), list[Record[bytes, Order]])
        except FolkmootError:
            pass
"""

# What is wrong is on the lines that say so, and on no other.
WRONG = """
from folkmoot import Admin, AsyncConsumer, AsyncProducer, AvroSerializer, Consumer, Producer
from folkmoot import SchemaRegistry, TopicPartition
from folkmoot import Consumers  # wrong


def begin(consumer: int, partitions: list[TopicPartition]) -> None: ...


async def later(consumer: Consumer, partitions: list[TopicPartition]) -> None: ...


Producer(zookeeper="z:1", lingr=0.1)  # wrong
Producer(zookeeper="z:1", linger="5ms")  # wrong
Producer(zookeeper="z:1", acks="most")  # wrong
Producer("z:1")  # wrong
AsyncProducer(zookeeper="z:1", compresion="zstd")  # wrong
Producer(zookeeper="z:1", value_serializer=str.encode).send("t", 5)  # wrong
Producer(zookeeper="z:1").send("t", "a text")  # wrong
Consumer(zookeeper="z:1", auto_ofset_reset="latest")  # wrong
Consumer(zookeeper="z:1", auto_offset_reset="first")  # wrong
Consumer(zookeeper="z:1", group="g", topics=7)  # wrong
Consumer(zookeeper="z:1", group="g", topics=["t"], on_assign=begin)  # wrong
Consumer(zookeeper="z:1", group="g", topics=["t"], on_revoke=later)  # wrong
AsyncConsumer(zookeeper="z:1", grop="g")  # wrong
Admin(zookeeper="z:1", time_out=5)  # wrong
Consumer(zookeeper="z:1", on_decode_error="ignore")  # wrong
registry = SchemaRegistry("z:1")
Producer(zookeeper="z:1", value_serializer=AvroSerializer(registry, int)).send("t", "five")  # wrong
AvroSerializer(registry, int, strategy="subject")  # wrong
for record in Consumer(zookeeper="z:1", value_deserializer=bytes.decode):
    record.key.decode()  # wrong
    record.value + 1  # wrong
"""

Found = Mapping[str, set[int]]
"""Lines with errors, by the name of the file."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Away from the checkout: what is checked is what a user's programs see."""
    directory = tmp_path_factory.mktemp("programs")
    (directory / "right.py").write_text(RIGHT)
    (directory / "wrong.py").write_text(WRONG)
    readme = (ROOT / "README.md").read_text()
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", readme, re.M | re.S)):
        (directory / f"readme{number}.py").write_text(block)
    return directory


def run(programs: Path, *words: str) -> str:
    command = [sys.executable, "-m", *words]
    done = subprocess.run(
        command, cwd=programs, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def mypy(programs: Path) -> Found:
    found: dict[str, set[int]] = defaultdict(set)
    for line in run(programs, "mypy", "--strict", "--output=json", ".").splitlines():
        said = json.loads(line)
        if said["severity"] == "error":
            found[said["file"]].add(said["line"])
    return found


def pyright(programs: Path) -> Found:
    settings = {"typeCheckingMode": "strict"}
    (programs / "pyrightconfig.json").write_text(json.dumps(settings))
    words = ("basedpyright", "--outputjson", f"--pythonpath={sys.executable}")
    found: dict[str, set[int]] = defaultdict(set)
    for said in json.loads(run(programs, *words))["generalDiagnostics"]:
        if said["severity"] == "error":
            found[Path(said["file"]).name].add(said["range"]["start"]["line"] + 1)
    return found


@pytest.mark.parametrize("check", [mypy, pyright])
def test_a_type_checker_finds_what_is_wrong_in_a_program_and_nothing_else(
    programs: Path, check: Callable[[Path], Found]
) -> None:
    lines = enumerate(WRONG.splitlines(), start=1)
    assert check(programs) == {"wrong.py": {number for number, line in lines if "# wrong" in line}}


def test_every_public_name_is_there_and_dir_shows_it() -> None:
    assert {"Consumer", "Delivery", "Health", "NotOwner", "Sticky"} <= set(folkmoot.__all__)
    for name in folkmoot.__all__:
        assert getattr(folkmoot, name) is not None
    assert {name for name in dir(folkmoot) if name[:2] != "__"} == set(folkmoot.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Consumers'"):
        _ = folkmoot.Consumers  # type: ignore[attr-defined]


def test_every_error_is_a_public_name() -> None:
    declared = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.FolkmootError)
    }
    assert declared <= set(folkmoot.__all__)


def test_public_names_speak_of_public_names_alone() -> None:
    """In the fields, parameters and results of what is public, so that nobody has to import anything else."""
    later = {"pa": pyarrow, "Schema": Schema}
    later |= {name: getattr(folkmoot, name) for name in folkmoot.__all__}

    def private(hint: Any) -> Iterator[str]:
        if isinstance(hint, type) and hint.__module__.startswith("folkmoot"):
            if getattr(folkmoot, hint.__name__, None) is not hint:
                yield f"{hint.__module__}.{hint.__name__}"
        elif hint == folkmoot.Connect:
            return  # sessions are made by us alone
        for part in (*([get_origin(hint)] if get_origin(hint) else []), *get_args(hint)):
            yield from private(part)

    def spoken(each: Any) -> Iterator[tuple[str, Any]]:
        yield "", each
        for name, found in inspect.getmembers_static(each) if isinstance(each, type) else ():
            function = getattr(found, "fget", None) or getattr(found, "__func__", found)
            if name[0] != "_" and inspect.isfunction(function):
                yield f".{name}", function

    found = [
        f"{name}{member}: {said}"
        for name in folkmoot.__all__
        for member, each in spoken(getattr(folkmoot, name))
        if isinstance(each, type) or inspect.isfunction(each)
        for of, hint in get_type_hints(each, localns=later).items()
        if of[0] != "_"
        for said in private(hint)
    ]
    assert not found
