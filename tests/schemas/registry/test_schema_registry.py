"""The registry as a library: caches, sessions, errors."""

import subprocess
import sys

import pytest

from folkmoot.coordination.zookeeper.operations import SessionLost
from folkmoot.protocol.errors import (
    ClosedError,
    InvalidSchema,
    SchemaNotFound,
    SubjectNotFound,
    pip_command,
)
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.schemas.sessions import CountingSession, memory_session

LONG = {"type": "long"}
LONG_TEXT = '{"type": "long"}'


class Opener:
    """A `Connect` that remembers the sessions it has opened."""

    def __init__(self) -> None:
        self.ensemble = MemoryZooKeeper()
        self.opened: list[MemorySession] = []

    def __call__(self, session_timeout: float) -> MemorySession:
        self.opened.append(self.ensemble.connect(session_timeout))
        return self.opened[-1]


def test_a_schema_is_registered_once_and_found_by_its_id() -> None:
    registry = SchemaRegistry(memory_session())
    first = registry.register("s", '{"type" : "long"}')
    assert (first.subject, first.version, first.id) == ("s", 1, 1)
    assert registry.register("s", LONG) == registry.register("s", '"long"') == first
    assert registry.register("t", '"long"').id == first.id
    assert registry.get(first.id).schema == first.schema == '{"type" : "long"}'
    assert registry.resolved(first.id) == '"long"'
    assert registry.version("s", "latest") == registry.version("s", 1) == first
    assert registry.versions("s") == [1]
    assert registry.subjects() == ["s", "t"]


def test_what_an_id_names_is_not_asked_for_again() -> None:
    session = CountingSession(memory_session())
    registry = SchemaRegistry(session)
    number = registry.register("s", LONG).id
    registry.get(number)
    asked = session.asked
    assert registry.get(number).schema == LONG_TEXT
    assert session.asked == asked


def test_what_is_not_there_yet_is_asked_for_again() -> None:
    ensemble = MemoryZooKeeper()
    reader, writer = SchemaRegistry(ensemble.connect()), SchemaRegistry(ensemble.connect())
    with pytest.raises(SchemaNotFound, match="no schema has the id 1"):
        reader.get(1)
    with pytest.raises(SubjectNotFound, match="subject s"):
        reader.version("s", "latest")
    with pytest.raises(SubjectNotFound, match="subject s"):
        reader.versions("s")
    writer.register("s", LONG)
    assert reader.get(1).schema == LONG_TEXT
    assert reader.version("s", "latest").id == 1


def test_what_is_no_schema_gets_no_id() -> None:
    registry = SchemaRegistry(memory_session())
    with pytest.raises(InvalidSchema):
        registry.register("s", "{}")
    assert registry.subjects(deleted=True) == []
    assert registry.register("s", LONG).id == 1


def test_no_session_is_opened_before_it_is_needed_and_the_own_one_is_closed() -> None:
    opener = Opener()
    with SchemaRegistry(opener) as registry:
        assert opener.opened == []
        number = registry.register("s", LONG).id
        registry.get(number)
        assert len(opener.opened) == 1
    with pytest.raises(SessionLost):
        SchemaRegistry(opener.opened[0]).subjects()
    assert registry.get(number).schema == LONG_TEXT
    with pytest.raises(ClosedError, match="was closed"):
        registry.subjects()


def test_a_lost_session_is_replaced() -> None:
    opener = Opener()
    registry = SchemaRegistry(opener)
    registry.register("s", LONG)
    opener.ensemble.expire(opener.opened[0])
    assert registry.version("s", "latest").id == 1
    assert len(opener.opened) == 2


def test_a_session_that_was_given_is_neither_closed_nor_replaced() -> None:
    ensemble = MemoryZooKeeper()
    session = ensemble.connect()
    with SchemaRegistry(session) as registry:
        registry.register("s", LONG)
    assert SchemaRegistry(session).subjects() == ["s"]
    ensemble.expire(session)
    with pytest.raises(SessionLost):
        SchemaRegistry(session).subjects()


def test_a_registry_takes_a_connect_string(chroot: str) -> None:
    with SchemaRegistry(chroot) as registry, SchemaRegistry(chroot) as other:
        assert other.get(registry.register("s", LONG).id).schema == LONG_TEXT


def test_without_fastavro_the_pip_command_is_named() -> None:
    program = (
        "import sys; sys.modules['fastavro'] = None\n"
        "from folkmoot.protocol.errors import MissingExtra\n"
        "try:\n"
        "    import folkmoot.schemas.values.deserializer\n"
        "except MissingExtra as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert pip_command("avro") in done.stdout, done.stderr
