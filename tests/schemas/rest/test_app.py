"""What all calls have in common: bodies, methods, errors, ZooKeeper that is away, users."""

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.requests import Request

from folkmoot.coordination.zookeeper.operations import Operation
from folkmoot.coordination.zookeeper.session import Outcome, Session
from folkmoot.protocol.errors import ConfigError, ZooKeeperUnreachable
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.rest import app
from folkmoot.schemas.rest.users import Users, line_for
from tests.forwarding_session import ForwardingSession
from tests.memory_zookeeper import MemoryZooKeeper
from tests.schemas.rest.api import LONG, STRING, Api
from tests.schemas.sessions import CountingSession, memory_session

REGISTER = "POST /subjects/s/versions"


class SilentSession(ForwardingSession):
    """Answers nothing as long as it is `silent`; what was asked then stays unanswered."""

    silent = False

    def submit(self, operation: Operation, done: Callable[[Outcome], None]) -> None:
        if not self.silent:
            self._session.submit(operation, done)


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("PATCH /config", "DELETE, GET, HEAD, PUT"),
        ("DELETE /subjects", "GET, HEAD"),
        ("GET /compatibility/subjects/s/versions", "POST"),
        ("OPTIONS /subjects/s", "DELETE, POST"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_refused_with_those_it_has(
    line: str, allowed: str
) -> None:
    api = Api()
    assert api.refused(line) == 405
    method, _, path = line.partition(" ")
    answer = api.client.request(method, path)
    assert ", ".join(sorted(answer.headers["Allow"].split(", "))) == allowed


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b'{"schema": "\xff"}', 400),
        (b"[" * 100_000, 400),
        (b'{"x": ' * 100_000, 400),
        (b"[]", 400),
        (b"null", 400),
        (b'{"schema": null}', 42201),
        (b'{"schema": 1}', 42201),
        (b'{"schema": "\\"long\\"", "id": "1"}', 42201),
        (b'{"schema": "\\"long\\"", "version": 1.5}', 42201),
        (b'{"schema": "\\"long\\"", "metadata": []}', 42201),
    ],
)
def test_a_body_that_is_no_json_or_another_shape_is_refused(body: bytes, code: int) -> None:
    api = Api()
    assert api.refused(REGISTER, body) == code
    assert api.done("GET /subjects") == []


def test_a_body_that_is_too_large_is_refused_and_its_sender_hears_of_it() -> None:
    api = Api()
    body = json.dumps({"schema": '"long"', "more": "x" * app.MAX_BODY}).encode()
    assert api.refused(REGISTER, body) == 413
    assert api.refused("PUT /config", body) == 413
    assert api.done(REGISTER, b" " * (app.MAX_BODY - 100) + json.dumps(LONG).encode())


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain", "Accept": "*/*"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Accept": "text/html", "Accept-Encoding": "br"},
        {"Content-Type": "application/vnd.schemaregistry+json; charset=latin-1"},
    ],
)
def test_headers_say_nothing_about_body_or_answer(headers: dict[str, str]) -> None:
    assert Api()(REGISTER, LONG, **headers)[0] == 200


def test_the_head_of_what_can_be_read_can_be_asked_for() -> None:
    api = Api()
    api.done(REGISTER, LONG)
    for path in ("/subjects", "/schemas/ids/1"):
        assert api.client.head(path).status_code == 200


def test_what_an_id_names_is_answered_again_without_zookeeper_and_without_a_thread() -> None:
    session = CountingSession(memory_session())
    api = Api(session)
    for body in (LONG, STRING):
        api.done(f"POST /subjects/{body['schema'][1:-1]}/versions", body)
    api = Api(session)
    first = [api.done(f"GET /schemas/ids/{number}") for number in (1, 2)]
    asked = session.asked
    assert [api.done(f"GET /schemas/ids/{number}?subject=a") for number in (1, 2)] == first
    assert session.asked == asked
    assert api.refused("GET /schemas/ids/1?subject=:.c:a") == 40403


def test_answers_by_id_are_kept_up_to_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when several ask for the same at a time."""
    registry = SchemaRegistry(memory_session())
    assert asyncio.run(ask_for_the_same(registry, monkeypatch)) == ["2", "3"]


async def ask_for_the_same(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids whose answers are kept."""
    for name in ("long", "string", "bytes"):
        registry.register(name, f'"{name}"')
    answers = app._ById(app._Calls(registry, 10.0))
    monkeypatch.setattr(
        app, "MAX_CACHED_BYTES", 2 * app._size(app.RegistryResponse(b'{"schema":"\\"string\\""}'))
    )
    for number in (1, 2, 3):
        scope = {
            "type": "http",
            "method": "GET",
            "path_params": {"id": str(number)},
            "query_string": b"",
        }
        both = await asyncio.gather(*(answers.respond(Request(scope)) for _ in range(3)))
        assert len({each.body for each in both}) == 1
    return [each for each, _ in answers._responses]


def test_while_zookeeper_does_not_answer_only_what_is_cached_can_be_had() -> None:
    session = SilentSession(memory_session())
    api, hasty = Api(session), Api(session, timeout=0.05, zookeeper="zoo:2181")
    api.done(REGISTER, LONG)
    api.done("GET /schemas/ids/1")
    session.silent = True
    status, said = hasty("GET /subjects")
    assert (status, "not done" in said["message"], "zoo:2181" in said["message"]) == (
        503,
        True,
        True,
    )
    assert hasty.refused("GET /subjects/s/versions/latest") == 50002
    assert hasty.refused(REGISTER, STRING) == 50002
    assert hasty.refused("GET /readyz") == 50002
    assert api.done("GET /schemas/ids/1") == {"schema": '"long"'}
    assert api.done("GET /healthz") == {"ok": True}
    session.silent = False
    assert api.done("GET /subjects") == ["s"]
    assert api.done("GET /readyz") == {"ok": True}


def test_a_session_that_does_not_answer_is_told_with_the_address_of_zookeeper() -> None:
    session = SilentSession(memory_session())
    session.silent = True
    api = Api(zookeeper="zoo:2181")
    api.serve(SchemaRegistry(session, timeout=0.05))
    status, said = api("GET /subjects")
    assert status == 503
    assert said["message"].startswith("ZooKeeper did not answer within ")
    assert said["message"].endswith(" s (ZooKeeper: zoo:2181)")


def test_a_server_goes_on_when_zookeeper_is_back() -> None:
    ensemble = MemoryZooKeeper()
    is_away = True

    def connect(session_timeout: float) -> Session:
        if is_away:
            raise ZooKeeperUnreachable("no ZooKeeper server answers")
        return ensemble.connect(session_timeout)

    api = Api()
    api.serve(SchemaRegistry(connect))
    assert api(REGISTER, LONG) == (
        503,
        {"error_code": 50001, "message": "no ZooKeeper server answers"},
    )
    is_away = False
    assert api.done(REGISTER, LONG)["id"] == 1


def test_an_error_of_ours_is_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()

    def fail() -> None:
        raise ValueError("secret")

    monkeypatch.setattr(api.registry, "contexts", fail)
    status, said = api("GET /contexts")
    assert (status, said["error_code"]) == (500, 500)
    assert "secret" not in said["message"]


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


@pytest.fixture(scope="module")
def file_of_users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("users") / "users"
    lines = ["# who may", "", line_for("alice", "s:cret"), line_for("bob", "pässword")]
    file.write_text("\n".join(lines))
    return file


def test_only_users_are_let_in(file_of_users: Path) -> None:
    api = Api(users=Users.read(file_of_users))
    assert api.refused("GET /subjects") == 40101
    assert api.client.get("/subjects").headers["WWW-Authenticate"] == 'Basic realm="folkmoot"'
    for refused in (
        basic("alice", "secret"),
        basic("alice", ""),
        basic("carol", "s:cret"),
        {"Authorization": "Basic"},
        {"Authorization": "Basic %"},
        {"Authorization": "Basic /w=="},
        {"Authorization": "Bearer " + basic("alice", "s:cret")["Authorization"][6:]},
    ):
        status, said = api("GET /subjects", **refused)
        assert (status, said["message"]) == (401, "wrong user or password")
    for _ in range(2):
        assert api("GET /subjects", **basic("alice", "s:cret")) == (200, [])
    assert api("GET /subjects", **basic("bob", "pässword")) == (200, [])
    assert api.refused(REGISTER, LONG) == 40101
    assert api.done("GET /healthz") == {"ok": True}
    assert api.refused("GET /readyz") == 40101


def test_a_password_is_hashed_once_and_then_remembered(file_of_users: Path) -> None:
    users = Users.read(file_of_users)
    header = basic("alice", "s:cret")["Authorization"]
    assert not users.is_remembered(header)
    assert users.admits(header)
    assert users.is_remembered(header)
    assert not users.admits(basic("alice", "no")["Authorization"])
    assert not users.is_remembered(basic("alice", "no")["Authorization"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no user"),
        ("# nobody\n", "has no user"),
        ("alice:secret", "users:1 is no user"),
        ("alice:$scrypt$ln=14,r=8,p=1$YQ$YQ\nbob", "users:2 is no user"),
        ("alice:$scrypt$ln=40,r=8,p=1$YQ$YQ", "users:1 is no user"),
        ("alice:$scrypt$ln=14,r=8,p=1$Y$YQ", "users:1 is no user"),
    ],
)
def test_a_file_that_names_no_users_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "users"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        Users.read(file)


def test_a_file_of_users_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Users.read(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "password"), [("", "x"), ("a:b", "x"), ("a b", "x"), ("#a", "x"), ("a", "")]
)
def test_a_name_or_password_that_cannot_be_sent_is_refused(name: str, password: str) -> None:
    with pytest.raises(ConfigError):
        line_for(name, password)
