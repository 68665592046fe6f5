"""The registry as a library: caches, sessions, errors."""

import inspect
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.connector import connect
from folkmoot.coordination.schemas.versions import Reference
from folkmoot.coordination.zookeeper.execute import execute_all
from folkmoot.coordination.zookeeper.operations import (
    Children,
    Create,
    Exists,
    Get,
    Multi,
    Operation,
    Recipe,
    SessionLost,
    Sync,
)
from folkmoot.protocol.errors import (
    ClosedError,
    IncompatibleSchema,
    InvalidSchema,
    ReferenceExists,
    RegistryError,
    SchemaNotFound,
    SubjectNotFound,
    VersionNotFound,
    ZooKeeperUnreachable,
    pip_command,
)
from folkmoot.schemas.registry.contents import Cache
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.consumers.test_forks import in_child
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper, Request
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
    registry.resolved(number)
    asked = session.asked
    assert registry.get(number).schema == LONG_TEXT
    registry.close()
    assert registry.resolved(number) == '"long"'
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


def record(name: str, **types: Any) -> dict[str, Any]:
    fields = [{"name": field, "type": kind} for field, kind in types.items()]
    return {"type": "record", "name": name, "fields": fields}


def test_the_text_as_given_is_kept_or_the_one_that_normalize_makes_of_it() -> None:
    registry = SchemaRegistry(memory_session())
    given = '{"name": "E", "type": "enum",  "namespace": "n", "symbols": ["A"], "doc": ""}'
    first = registry.register("s", given)
    assert first.schema == given
    assert registry.resolved(1) == '{"doc":"","name":"n.E","symbols":["A"],"type":"enum"}'
    with pytest.raises(SchemaNotFound):
        registry.lookup("s", given, normalize=True)
    normal = '{"type":"enum","name":"E","namespace":"n","symbols":["A"]}'
    assert registry.register("s", given, normalize=True).schema == normal
    assert registry.lookup("s", given, normalize=True) == registry.lookup("s", normal)
    assert registry.lookup("s", given) == first


def test_references_metadata_and_rules_are_part_of_what_a_schema_is() -> None:
    registry = SchemaRegistry(memory_session())
    plain = registry.register("s", LONG)
    owned = registry.register("s", LONG, metadata={"properties": {"owner": "x"}})
    ruled = registry.register("s", LONG, rule_set={"domainRules": []})
    assert [each.id for each in (plain, owned, ruled)] == [1, 2, 3]
    assert registry.get(2).metadata == {"properties": {"owner": "x"}}
    assert registry.version("s", 3).rule_set == {"domainRules": []}
    assert registry.lookup("s", LONG).version == 1
    assert registry.lookup("s", LONG, metadata={"properties": {"owner": "x"}}).version == 2
    assert registry.by_guid(owned.guid.upper()) == registry.get(2)
    assert registry.register(":.c:s", LONG).guid == plain.guid
    for guid in ("nonsense", plain.guid[::-1]):
        with pytest.raises(SchemaNotFound, match="guid"):
            registry.by_guid(guid)


def test_a_schema_is_resolved_with_all_that_it_refers_to_through_others() -> None:
    registry = SchemaRegistry(memory_session())
    registry.register("a", record("A", x="long"))
    to_a = Reference("A", "a", 1)
    registry.register("b", record("B", a="A"), references=[to_a])
    both = [Reference("B", "b", -1), to_a]
    found = registry.register("c", record("C", b="B", a="A"), references=both)
    assert found.references == (Reference("B", "b", 1), to_a)
    text = SchemaRegistry(registry._session()).resolved(found.id)
    assert json.loads(text)["fields"][0]["type"]["fields"][0]["type"]["name"] == "A"
    assert registry.referenced_by("a", 1) == [2, 3]
    with pytest.raises(ReferenceExists):
        registry.delete_subject("a")
    with pytest.raises(InvalidSchema, match="version 2 of subject a, which does not exist"):
        registry.register("d", record("D", a="A"), references=[Reference("A", "a", 2)])
    with pytest.raises(InvalidSchema, match="A"):
        registry.register("d", record("D", a="A"))


def test_what_an_id_means_outlives_the_subjects_it_refers_to() -> None:
    registry = SchemaRegistry(memory_session())
    registry.register("a", record("A", x="long"))
    reference = [Reference("A", "a", 1)]
    first = registry.register("b", record("B", a="A"), references=reference)
    for subject in ("b", "a"):
        registry.delete_subject(subject)
        registry.delete_subject(subject, permanent=True)
    registry.register("a", record("A", x="string"))
    fresh = SchemaRegistry(registry._session())
    assert '"long"' in fresh.resolved(first.id)
    second = fresh.register("b", record("B", a="A"), references=reference)
    assert '"string"' in fresh.resolved(second.id)
    assert second.id != first.id


def test_an_incompatible_schema_is_refused_with_findings_as_check_says_before() -> None:
    registry = SchemaRegistry(memory_session())
    registry.register("s", record("R", a="long"))
    worse = record("R", a="long", b="int")
    findings = registry.check("s", worse)
    with pytest.raises(IncompatibleSchema, match=r"level BACKWARD: .*default") as refused:
        registry.register("s", worse)
    assert refused.value.findings == findings
    assert [each.kind for each in findings] == ["READER_FIELD_MISSING_DEFAULT_VALUE"]
    assert registry.check("s", worse, 1) == registry.check("s", worse, "latest") == findings
    assert registry.check("unknown", worse, "latest") == registry.check("unknown", worse) == []
    for subject, version in (("s", 2), ("unknown", 1)):
        with pytest.raises(VersionNotFound):
            registry.check(subject, worse, version)
    registry.set_compatibility("FORWARD", "s")
    assert registry.check("s", worse) == []
    assert registry.register("s", worse).version == 2


def test_errors_have_the_codes_of_the_rest_api() -> None:
    registry = SchemaRegistry(memory_session())
    registry.register("s", LONG)
    calls: list[tuple[int, Callable[[], object]]] = [
        (40401, lambda: registry.versions("x")),
        (40401, lambda: registry.lookup("x", LONG)),
        (40401, lambda: registry.delete_subject("x")),
        (40402, lambda: registry.version("s", 2)),
        (40403, lambda: registry.lookup("s", record("R"))),
        (40403, lambda: registry.get(9)),
        (40403, lambda: registry.versions_of(9)),
        (40405, lambda: registry.delete_subject("s", permanent=True)),
        (40407, lambda: registry.delete_version("s", 1, permanent=True)),
        (40408, lambda: registry.compatibility("s")),
        (40408, lambda: registry.delete_compatibility("s")),
        (40409, lambda: registry.mode("s")),
        (42201, lambda: registry.register("s", "{")),
        (42202, lambda: registry.version("s", 0)),
        (42202, lambda: registry.delete_version("s", 2**31)),
        (42203, lambda: registry.set_compatibility("full")),
        (42204, lambda: registry.set_mode("")),
        (42205, lambda: registry.register("t", LONG, id=5)),
        (42208, lambda: registry.register("a\nb", LONG)),
        (409, lambda: registry.register("s", record("R"))),
    ]
    for code, call in calls:
        with pytest.raises(RegistryError) as refused:
            call()
        assert refused.value.error_code == code
    registry.delete_version("s", 1)
    for code, call in (
        (40406, lambda: registry.delete_version("s", 1)),
        (40404, lambda: registry.delete_subject("s")),
        (40401, lambda: registry.versions("s")),
    ):
        with pytest.raises(RegistryError) as refused:
            call()
        assert refused.value.error_code == code
    assert registry.versions("s", deleted=True) == registry.versions("s", deleted_only=True) == [1]


def test_lists_tell_live_from_deleted_and_contexts_apart() -> None:
    registry = SchemaRegistry(memory_session())
    for subject in ("ab", "ac", "b", ":.c:ab"):
        registry.register(subject, LONG)
    registry.set_compatibility("FULL", "a-without-versions")
    registry.delete_subject("ac")
    assert registry.subjects() == ["ab", "b"]
    assert registry.subjects("a", deleted=True) == ["ab", "ac"]
    assert registry.subjects("a", deleted_only=True) == ["ac"]
    assert registry.subjects(":.c:") == [":.c:ab"]
    assert registry.subjects(":*:a") == [":.c:ab", "ab"]
    assert registry.versions_of(1) == [("ab", 1), ("b", 1)]
    assert registry.subjects_of(1, deleted=True) == ["ab", "ac", "b"]
    assert registry.contexts() == [".", ".c"]


def test_a_listing_has_versions_and_levels_and_asks_once_for_each_subject() -> None:
    session = CountingSession(memory_session())
    registry = SchemaRegistry(session)
    names = [f"s{number:02}" for number in range(30)]
    for name in [*names, ":.c:s", ":.d:s"]:
        registry.register(name, LONG)
    registry.set_compatibility("NONE", "s00")
    registry.set_compatibility("FULL")
    registry.set_compatibility("FORWARD", ":.c:")
    session.asked = 0
    found = registry.listing()
    assert session.asked == 2 * (1 + len(names) + 1)
    assert found == [("s00", [1], "NONE"), *((name, [1], "FULL") for name in names[1:])]
    assert registry.listing(":*:") == [
        (":.c:s", [1], "FORWARD"), (":.d:s", [1], "FULL"), *found,
    ]  # fmt: skip
    registry.delete_subject("s01")
    assert registry.listing("s01") == []
    assert registry.listing("s01", deleted=True) == [("s01", [1], "FULL")]


CHANGES: dict[str, Callable[[SchemaRegistry], Any]] = {
    "register": lambda registry: registry.register("s", record("S")),
    "register what there is": lambda registry: registry.register("t", record("S", a="int")),
    "register with a reference": lambda registry: registry.register(
        "u", '"t.T"', references=[Reference("t.T", "t", -1)]
    ),
    "import": lambda registry: registry.register("i", record("I"), id=70, version=3),
    "delete a version": lambda registry: registry.delete_version("s", "latest"),
    "delete a version for good": lambda registry: registry.delete_version("s", 1, permanent=True),
    "delete a subject": lambda registry: registry.delete_subject("s"),
    "delete a subject for good": lambda registry: registry.delete_subject("d", permanent=True),
    "set a subject's level": lambda registry: registry.set_compatibility("FULL", "s"),
    "take it back": lambda registry: registry.delete_compatibility("t"),
    "set the level": lambda registry: registry.set_compatibility("NONE"),
    "set a mode": lambda registry: registry.set_mode("READONLY", "s"),
    "set the mode": lambda registry: registry.set_mode("IMPORT", force=True),
    "take a mode back": lambda registry: registry.delete_mode("i"),
}


def prepared() -> MemoryZooKeeper:
    """A ZooKeeper with a registry of which all `CHANGES` can be made."""
    ensemble = MemoryZooKeeper()
    registry = SchemaRegistry(ensemble.connect())
    registry.register("s", record("S", a="int", b="int"))
    registry.register("s", record("S", a="int"))
    registry.delete_version("s", 1)
    registry.register("t", record("t.T"))
    registry.set_compatibility("NONE", "t")
    registry.set_mode("IMPORT", "i")
    for number in ('"int"', '"long"'):
        registry.register("d", number)
    registry.delete_subject("d")
    return ensemble


QUESTIONS: dict[str, Callable[[SchemaRegistry], Any]] = {
    "schemas": lambda registry: registry.schemas(deleted=True),
    "schemas of": lambda registry: registry.schemas_of(["s", "none", "t"]),
    "listing": lambda registry: registry.listing(),
    "compatibilities": lambda registry: registry.compatibilities(["s", "t"]),
    "versions of an id": lambda registry: registry.versions_of(1),
    "subjects of an id": lambda registry: registry.subjects_of(2, deleted=True),
    "subjects": lambda registry: registry.subjects(),
    "versions": lambda registry: registry.versions("s"),
    "a version": lambda registry: registry.version("s", "latest"),
    "an id": lambda registry: registry.get(1),
    "resolved": lambda registry: registry.resolved(1),
    "by guid": lambda registry: registry.by_guid(registry.get(1).guid),
    "lookup": lambda registry: registry.lookup("s", record("S", a="int")),
    "check": lambda registry: registry.check("s", record("S", a="int")),
    "referenced by": lambda registry: registry.referenced_by("t", 1),
    "contexts": lambda registry: registry.contexts(),
    "compatibility": lambda registry: registry.compatibility(),
    "mode": lambda registry: registry.mode(),
}
NOT_QUESTIONS = {
    "register", "delete_version", "delete_subject", "set_compatibility", "delete_compatibility",
    "set_mode", "delete_mode", "close",
}  # fmt: skip


def data_of(ensemble: MemoryZooKeeper) -> dict[str, bytes]:
    return {path: node.data for path, node in ensemble.snapshot().items()}


@pytest.mark.parametrize("executed", [True, False], ids=["after it", "before it"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_session_lost_at_any_step_leaves_a_change_its_one_answer(
    change: str, executed: bool
) -> None:
    """The session ends at the n-th operation, after it was done or before, until no more are needed."""
    clean = prepared()
    answer = CHANGES[change](SchemaRegistry(clean.connect()))
    asked, nth = 0, 0
    while nth <= asked:
        ensemble = prepared()
        ensemble.deliver = EndOfSession(ensemble, nth, executed)
        assert CHANGES[change](SchemaRegistry(ensemble.connect)) == answer
        assert data_of(ensemble) == data_of(clean)
        asked, nth = ensemble.deliver.asked, nth + 1
    assert asked >= 3


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_session_lost_at_any_step_leaves_a_question_its_answer(question: str) -> None:
    answer = QUESTIONS[question](SchemaRegistry(prepared().connect()))
    asked, nth = 0, 0
    while nth <= asked:
        ensemble = prepared()
        ensemble.deliver = EndOfSession(ensemble, nth, executed=False)
        assert QUESTIONS[question](SchemaRegistry(ensemble.connect)) == answer
        asked, nth = ensemble.deliver.asked, nth + 1
    assert asked >= 1


def test_every_question_of_the_registry_is_asked_in_a_lost_session() -> None:
    public = {
        name for name, _ in inspect.getmembers(SchemaRegistry, inspect.isfunction) if name[0] != "_"
    }
    assert len(public - NOT_QUESTIONS) == len(QUESTIONS)


@pytest.mark.parametrize("executed", [True, False], ids=["after it", "before it"])
@pytest.mark.parametrize("change", CHANGES)
def test_who_dies_at_any_step_has_changed_all_or_nothing_and_another_can_do_it(
    change: str, executed: bool
) -> None:
    before, after = prepared(), prepared()
    CHANGES[change](SchemaRegistry(after.connect()))
    for nth in range(100):
        ensemble = prepared()
        ensemble.deliver = EndOfSession(ensemble, nth, executed)
        try:
            CHANGES[change](SchemaRegistry(ensemble.connect()))
        except SessionLost:
            assert data_of(ensemble) in (data_of(before), data_of(after))
        else:
            break
        with suppress(RegistryError):  # which says that it was done
            CHANGES[change](SchemaRegistry(ensemble.connect()))
        assert data_of(ensemble) == data_of(after)
    assert nth >= 3


class EndOfSession:
    """Delivers requests until the n-th one, with which its session ends."""

    def __init__(self, ensemble: MemoryZooKeeper, nth: int, executed: bool) -> None:
        self.asked = 0
        self._ensemble = ensemble
        self._nth = nth
        self._executed = executed

    def __call__(self, request: Request) -> None:
        is_last = self.asked == self._nth
        self.asked += 1
        if not is_last or self._executed:
            request.execute()
        if is_last:
            self._ensemble.expire(request.session)
        else:
            request.reply()


def test_what_can_change_is_read_after_a_sync() -> None:
    """One server lags until it is told to catch up."""
    ensemble = MemoryZooKeeper()
    registry = SchemaRegistry(ensemble.connect())
    registry.register("s", LONG)
    before = ensemble.snapshot()
    registry.register("s", '"double"')
    registry.delete_version("s", 1)
    registry.set_compatibility("FULL", "s")
    registry.register("t", '"int"')
    lagging: set[MemorySession] = set()

    def deliver(request: Request) -> None:
        if isinstance(request.operation, Sync):
            lagging.discard(request.session)
        is_read = isinstance(request.operation, Get | Exists | Children)
        request.execute(before if is_read and request.session in lagging else None)
        request.reply()

    ensemble.deliver = deliver

    def behind() -> SchemaRegistry:
        session = ensemble.connect()
        lagging.add(session)
        return SchemaRegistry(session)

    assert behind().versions("s") == [2]
    assert behind().version("s", "latest").id == 2
    assert behind().subjects() == ["s", "t"]
    assert behind().get(2).schema == '"double"'
    assert behind().resolved(3) == '"int"'
    assert behind().lookup("s", '"double"').version == 2
    assert behind().compatibility("s") == "FULL"
    assert behind().versions_of(1) == []
    assert len(behind().check("s", LONG)) == 1


def test_a_call_with_a_timeout_ends_while_zookeeper_is_away_and_works_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opener = Opener()
    registry = SchemaRegistry(opener, timeout=20.0)
    registry.register("s", LONG)
    opener.ensemble.suspend(opener.opened[0])
    monkeypatch.setattr(registry, "_timeout", 0.05)
    with pytest.raises(ZooKeeperUnreachable):
        registry.versions("s")
    monkeypatch.undo()
    assert registry.get(1).schema == LONG_TEXT
    opener.ensemble.resume(opener.opened[0])
    assert registry.versions("s") == [1]


def test_who_waits_too_long_for_other_threads_takes_an_id_all_the_same() -> None:
    registry = SchemaRegistry(memory_session())
    with registry._numbering_lock:
        assert registry.register("s", LONG).id == 1


def test_a_call_that_is_given_up_is_in_nobodys_way() -> None:
    ensemble = MemoryZooKeeper()
    registry = SchemaRegistry(ensemble.connect(), timeout=0.05)

    def deliver(request: Request) -> None:
        if not isinstance(request.operation, Multi):
            request.execute()
            request.reply()

    ensemble.deliver = deliver
    with pytest.raises(ZooKeeperUnreachable):
        registry.register("s", LONG)
    assert not registry._numbering_lock.locked()


def test_the_caches_are_bounded() -> None:
    cache: Cache[str] = Cache(100)
    for number in range(100):
        cache.put((".", number), "x" * 30, 30)
        assert cache.get((".", number)) == "x" * 30
    assert sum(cache.get((".", number)) is not None for number in range(100)) == 3
    cache.put((".", 0), "large", 1000)
    assert cache.get((".", 0)) is None


@pytest.mark.slow
def test_fifty_thousand_subjects_are_listed_by_prefix_within_a_second(empty_chroot: str) -> None:
    session = connect(empty_chroot, 10.0, create=True)
    with SchemaRegistry(session) as registry:
        registry.register("s", LONG)
        listing = f"{paths.schema_context('.')}/{paths.LIVE_SUBJECTS}"
        batches = (
            Multi(tuple(Create(f"{listing}/topic-{n}-value") for n in range(start, start + 500)))
            for start in range(0, 50_000, 500)
        )
        execute_all(session, map(create, batches))
        begun = time.monotonic()
        found = registry.subjects("topic-4")
        took = time.monotonic() - begun
        assert len(found) == 11_111
        assert len(registry.subjects()) == 50_001
        print(f"listed in {took:.2f} s")
        assert took < 10.0  # 0.2 s where nobody else is busy
    session.close()


def create(batch: Multi) -> Recipe[None]:
    yield batch


def test_a_schema_is_judged_again_when_what_it_refers_to_has_changed_meanwhile() -> None:
    ensemble = MemoryZooKeeper()
    other = SchemaRegistry(ensemble.connect())

    def inner(kind: str) -> Any:
        return {"type": "record", "name": "Inner", "fields": [{"name": "f", "type": kind}]}

    def outer(*more: str) -> Any:
        added = [{"name": name, "type": "int", "default": 0} for name in more]
        return {
            "type": "record", "name": "Outer", "fields": [{"name": "a", "type": "Inner"}, *added],
        }  # fmt: skip

    def overtaken(operation: Operation) -> None:
        if isinstance(operation, Multi) and len(other.versions("inner")) == 1:
            other.register("inner", inner("string"))

    other.set_compatibility("NONE", "inner")
    other.register("inner", inner("long"))
    latest = [Reference("Inner", "inner", -1)]
    other.register("outer", outer(), references=latest)
    registry = SchemaRegistry(CountingSession(ensemble.connect(), overtaken))
    with pytest.raises(IncompatibleSchema):
        registry.register("outer", outer("b"), references=latest)
    assert other.versions("inner") == [1, 2]
    assert other.versions("outer") == [1]


def test_in_a_forked_child_a_registry_that_was_used_before_is_closed() -> None:
    """Nobody would answer it there."""
    opener = Opener()
    used, unused = SchemaRegistry(opener), SchemaRegistry(opener)
    given = SchemaRegistry(opener(10.0))
    number = used.register("s", LONG).id

    def work() -> None:
        for registry in (used, given):
            with pytest.raises(ClosedError, match="used before a fork: make one in each process"):
                registry.versions("s")
            registry.close()
        assert used.get(number).schema == LONG_TEXT, "it is cached"
        assert unused.versions("s") == [1]

    assert in_child(work) == 0
    assert used.versions("s") == given.versions("s") == [1]


@pytest.mark.parametrize(("level", "warned"), [("BACKWARD", 1), ("NONE", 0)])
def test_a_subject_that_was_emptied_takes_any_schema_and_a_log_line_warns(
    level: str, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Confluent's registry judges by live versions alone (AbstractSchemaRegistry.register)."""
    registry = SchemaRegistry(memory_session())
    registry.set_compatibility(level)
    registry.register("s", record("S", a="int"))
    registry.delete_subject("s")
    assert registry.register("s", record("S", b="string")).version == 2
    assert [each.levelname for each in caplog.records] == ["WARNING"] * warned
    registry.register("t", record("S", a="int"))
    registry.delete_subject("t")
    registry.register("t", record("S", a="int"))
    assert len(caplog.records) == warned
