"""What a schema refers to, in the order in which a reader needs it."""

from folkmoot.coordination.schemas.lookups import collect_referred
from folkmoot.coordination.schemas.nodes import Content, StoredReference
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe
from tests.memory_zookeeper import MemoryZooKeeper


def refer(number: int, subject: str = "s") -> StoredReference:
    return StoredReference(f"n{number}", subject, 1, number)


def test_what_a_schema_refers_to_comes_before_it_and_once() -> None:
    known = {
        1: Content("one", ""),
        2: Content("two", "", (refer(1),)),
        3: Content("three", "", (refer(1), refer(2))),
        4: Content("four", ""),
    }

    def content(_: str, number: int) -> Recipe[Content]:
        yield from ()
        return known[number]

    session = MemoryZooKeeper().connect()
    found = execute(session, collect_referred(".", (refer(3), refer(4), refer(2)), content))
    assert found == ["one", "two", "three", "four"]
