"""`folkmoot schema export` and `import` over HTTP, here to and from our own server."""

import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse
from uvicorn import Config, Server

from folkmoot.console.schema.registries import LocalRegistry, RemoteRegistry
from folkmoot.console.schema.transfer import collect
from folkmoot.coordination.schemas.versions import Reference
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.rest.app import create_app
from folkmoot.schemas.rest.users import Users, line_for
from tests.console.schema.conftest import GATE, NOTE, Terminal, record
from tests.console.schema.test_transfer import KIND, fill
from tests.memory_zookeeper import MemoryZooKeeper


def served(registry: SchemaRegistry, users: Users | None = None) -> AbstractContextManager[str]:
    return serving(create_app(registry, users=users))


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """A server in this process; what stands between http:// and the end of its address."""
    config = Config(app, log_config=None, lifespan="off", ws="none")
    server = Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def test_schemas_go_to_another_registry_and_come_from_it(terminal: Terminal) -> None:
    fill(terminal.registry())
    before = collect(LocalRegistry(terminal.registry()), "")
    other = SchemaRegistry(MemoryZooKeeper().connect())
    with served(other) as address:
        assert terminal.done("export", f"http://{address}") == "copied 4 versions; 0 were there\n"
        assert collect(LocalRegistry(other), "") == before
        assert terminal.done("export", f"http://{address}") == "copied 0 versions; 4 were there\n"
        other.register("a b/c?-value", record(NOTE, name="More"))
        terminal.ensemble = MemoryZooKeeper()
        words = ("import", f"http://{address}/")
        assert terminal.done(*words) == "copied 5 versions; 0 were there\n"
        assert collect(LocalRegistry(terminal.registry()), "") == collect(LocalRegistry(other), "")


def test_schemas_of_a_context_keep_its_ids_and_what_they_refer_to(terminal: Terminal) -> None:
    registry = terminal.registry()
    registry.register("kinds", record(GATE))
    registry.register(":.c:kinds", KIND)
    items = '{"type": "array", "items": "Kind"}'
    registry.register(":.c:lists", items, references=[Reference("Kind", "kinds", 1)])
    before = collect(LocalRegistry(registry), ":*:")
    assert [(each.subject, each.id) for each in before.versions] == [
        (":.c:kinds", 1), (":.c:lists", 2), ("kinds", 1)
    ]  # fmt: skip
    other = SchemaRegistry(MemoryZooKeeper().connect())
    with served(other) as address:
        words = ("export", f"http://{address}", "--prefix")
        assert terminal.done(*words, ":.c:li") == "copied 2 versions; 0 were there\n"
        assert terminal.done(*words, ":*:") == "copied 1 version; 2 were there\n"
        assert collect(LocalRegistry(other), ":*:") == before
        file = str(terminal.path("schemas.jsonl"))
        terminal.done("export", file, "--prefix", ":*:")
        terminal.ensemble = MemoryZooKeeper()
        terminal.done("import", f"http://{address}", "--prefix", ":*:")
        assert collect(LocalRegistry(terminal.registry()), ":*:") == before
        terminal.ensemble = MemoryZooKeeper()
        terminal.done("import", file, "--prefix", ":*:k")
        assert collect(LocalRegistry(terminal.registry()), ":*:").versions == [
            each for each in before.versions if each.subject.endswith("kinds")
        ]


@pytest.mark.parametrize(
    ("put", "said"),
    [
        ((404, {"error_code": 404}), "has no modes"),
        ((200, {"mode": "IMPORT"}), "the id 8 and not 1"),
    ],
)
def test_a_registry_that_takes_no_ids_is_told_of(
    put: tuple[int, Any], said: str, terminal: Terminal
) -> None:
    terminal.registry().register("s", record(GATE))
    posted: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answers = {"PUT": put, "POST": (200, {"id": 8}), "DELETE": (200, {"mode": "IMPORT"})}
        status, answer = answers.get(scope["method"], (404, {}))
        posted.extend([scope["path"]] if scope["method"] == "POST" else [])
        await JSONResponse(answer, status)(scope, receive, send)

    with serving(app) as address:
        assert said in terminal.refused(1, "export", f"http://{address}")
    assert len(posted) == (put[0] == 200)


def test_a_copy_that_is_interrupted_while_a_registry_is_asked_opens_its_subjects_there_again(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(terminal.registry())
    other = SchemaRegistry(MemoryZooKeeper().connect())
    ask = RemoteRegistry._request

    def interrupted(
        place: RemoteRegistry, method: str, path: str, *given: Any, **named: Any
    ) -> Any:
        if method == "POST":

            def interrupt() -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(place._connection, "getresponse", interrupt)
                return ask(place, method, path, *given, **named)
        return ask(place, method, path, *given, **named)

    monkeypatch.setattr(RemoteRegistry, "_request", interrupted)
    with served(other) as address:
        assert terminal.run("export", f"http://{address}")[0] == 130
    for subject in ("flights", "planes", "zebra"):
        assert other.mode(subject, default_to_global=True) == "READWRITE"


def test_a_subject_that_is_in_use_there_needs_force(terminal: Terminal) -> None:
    other = SchemaRegistry(MemoryZooKeeper().connect())
    other.set_mode("IMPORT", "s")
    other.register("s", record(GATE), id=7, version=2)
    other.delete_mode("s")
    registry = terminal.registry()
    registry.register("s", record(NOTE))
    with served(other) as address:
        assert "s" in terminal.refused(1, "export", f"http://{address}")
        assert other.versions("s") == [2]
        terminal.done("export", f"http://{address}", "--force")
    assert other.versions("s") == [1, 2]
    assert other.mode("s", default_to_global=True) == "READWRITE"


def test_a_registry_that_knows_its_users_is_told_who_asks(
    terminal: Terminal, tmp_path: Path
) -> None:
    file = tmp_path / "users"
    file.write_text(f"{line_for('me', 'p@ss:word')}\n")
    other = SchemaRegistry(MemoryZooKeeper().connect())
    other.register("s", record(NOTE))
    with served(other, Users.read(file)) as address:
        for wrong in (address, f"me:wrong@{address}"):
            said = terminal.refused(1, "import", f"http://{wrong}")
            assert "401" in said
            assert "me:wrong" not in said
        terminal.done("import", f"http://me:p%40ss%3Aword@{address}")
    assert [each["subject"] for each in terminal.told("list")] == ["s"]


def test_what_is_no_registry_is_said_in_one_line(terminal: Terminal) -> None:
    with served(SchemaRegistry(MemoryZooKeeper().connect())) as address:
        said = terminal.refused(1, "import", f"http://{address}/elsewhere")
        assert f"http://{address} answers GET /subjects" in said
        assert "404" in said


@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK\r\n\r\n<html>", b"SSH-2.0\r\n", b""])
def test_a_server_that_says_something_else_is_said_in_one_line(
    said: bytes, terminal: Terminal
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        code, _, err = terminal.run("import", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert (code, err.count("\n")) == (1 if said[:4] == b"HTTP" else 3, 1)
