"""`folkmoot registry` as a process: side by side, users, TLS, ZooKeeper away, the end."""

import json
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from folkmoot.console.main import main
from folkmoot.console.running import registry
from folkmoot.console.running.embedded import EmbeddedZooKeeper
from folkmoot.console.running.processes import FOLKMOOT, RegistryProcess
from folkmoot.metrics.names import REGISTRY_REQUESTS, REGISTRY_SECONDS
from folkmoot.protocol.errors import pip_command
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.certificates import make_certificate
from tests.metrics.scrape import Scraped
from tests.waiting import eventually

LONG = json.dumps({"schema": '"long"'}).encode()
DEADLINE = 20.0


def ask(
    server: RegistryProcess,
    path: str,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    authorization: str = "",
) -> tuple[int, Any]:
    """GET, or POST with a body → status and JSON."""
    request = Request(f"{server.url}{path}", body, {"Authorization": authorization})
    try:
        with urlopen(request, timeout=DEADLINE, context=tls) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def connected(server: RegistryProcess, request: bytes) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), DEADLINE)
    connection.sendall(request)
    return connection


@pytest.mark.slow
def test_servers_side_by_side_and_clients_without_one_have_the_same_schemas(
    tmp_path: Path, chroot: str
) -> None:
    with (
        RegistryProcess(tmp_path / "1.log", chroot) as one,
        RegistryProcess(tmp_path / "2.log", chroot) as two,
        SchemaRegistry(chroot) as library,
    ):
        status, made = ask(one, "/subjects/s/versions", LONG)
        assert (status, made["id"]) == (200, 1)
        assert ask(two, "/subjects/s/versions/latest")[1]["id"] == 1
        assert library.get(1).schema == '"long"'
        assert ask(two, "/subjects/s/versions/7")[0] == 404
        shown = Scraped(two.address)
        shown.assert_declared([REGISTRY_REQUESTS, REGISTRY_SECONDS])
        name = "folkmoot_registry_requests_total"
        assert shown(name, method="GET", status="200") == 1
        assert shown(name, method="GET", status="404") == 1


@pytest.mark.slow
def test_a_server_is_told_to_end_and_does_whatever_is_open(
    tmp_path: Path, private_zookeeper: EmbeddedZooKeeper
) -> None:
    """A connection that is idle, one in the middle of a body, and one whose answer waits for ZooKeeper."""
    options = ["--timeout", "120"]
    server = RegistryProcess(tmp_path / "r.log", private_zookeeper.address, options=options)
    server.start()
    assert ask(server, "/subjects/s/versions", LONG)[0] == 200
    private_zookeeper.pause()
    head = b"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
    open_ones = [
        connected(server, b""),
        connected(server, head + b"{"),
        connected(server, b"GET /subjects HTTP/1.1\r\nHost: x\r\n\r\n"),
    ]
    idle = connected(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert idle.recv(10_000).startswith(b"HTTP/1.1 200 ")
    try:
        assert server.stop(DEADLINE) == 0
        assert open_ones[2].recv(10_000).startswith(b"HTTP/1.1 503 ")
    finally:
        private_zookeeper.resume()
        for connection in [*open_ones, idle]:
            connection.close()


@pytest.mark.slow
def test_a_server_says_that_zookeeper_is_away_and_goes_on_when_it_is_back(
    tmp_path: Path, private_zookeeper: EmbeddedZooKeeper
) -> None:
    options = ["--timeout", "1"]
    with RegistryProcess(tmp_path / "r.log", private_zookeeper.address, options=options) as server:
        # A busy ZooKeeper may need longer than that second.
        eventually(lambda: ask(server, "/subjects/s/versions", LONG)[0] == 200)
        eventually(lambda: ask(server, "/schemas/ids/1")[0] == 200)
        private_zookeeper.stop()
        status, said = ask(server, "/subjects")
        assert (status, said["error_code"] // 10) == (503, 5000)
        assert said["message"].count(private_zookeeper.address) == 1
        assert ask(server, "/readyz")[0] == 503
        assert ask(server, "/healthz") == (200, {"ok": True})
        assert ask(server, "/schemas/ids/1") == (200, {"schema": '"long"'})
        private_zookeeper.start()
        eventually(lambda: ask(server, "/subjects") == (200, ["s"]), 60.0)
        eventually(lambda: ask(server, "/readyz") == (200, {"ok": True}))


@pytest.mark.slow
def test_a_server_may_be_the_first_in_its_chroot(tmp_path: Path, empty_chroot: str) -> None:
    with RegistryProcess(tmp_path / "r.log", empty_chroot) as server:
        assert ask(server, "/subjects/s/versions", LONG)[0] == 200


@pytest.mark.slow
def test_users_and_tls(tmp_path: Path, chroot: str) -> None:
    certificate, key = make_certificate(tmp_path)
    users = tmp_path / "users"
    made = subprocess.run(
        [*FOLKMOOT, "registry", "--hash-password", "alice"],
        input="secret\n",
        capture_output=True,
        text=True,
        check=True,
    )
    users.write_text(made.stdout)
    options = ["--users", users, "--tls-certificate", certificate, "--tls-key", key]
    with RegistryProcess(tmp_path / "r.log", chroot, options=[str(each) for each in options]) as r:
        assert r.url.startswith("https://")
        tls = ssl.create_default_context(cafile=certificate)
        assert ask(r, "/healthz", tls=tls) == (200, {"ok": True})
        assert ask(r, "/subjects", tls=tls)[0] == 401
        alice = "Basic YWxpY2U6c2VjcmV0"
        assert ask(r, "/subjects", tls=tls, authorization=alice) == (200, [])


def test_an_address_in_use_is_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLKMOOT_ZOOKEEPER", "127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["registry", "--port", str(port)]) == 1
    assert capsys.readouterr().err.endswith(
        f"cannot listen at 127.0.0.1:{port}: Address already in use: choose another --port or --host\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--zookeeper", "x:"], 2, "x:"),
        (
            ["--users", "none"],
            2,
            "the users' file none cannot be read: No such file or directory\n",
        ),
        (
            ["--tls-certificate", "none"],
            2,
            "--tls-certificate none, --tls-key not given: cannot be",
        ),
        (["--tls-key", "none"], 2, "--tls-key is given without --tls-certificate"),
        (["--host", "192.0.2.1"], 1, "the registry cannot listen at 192.0.2.1:"),
        (["--host", "nowhere.invalid"], 1, "the registry cannot listen at nowhere.invalid:"),
        (["--hash-password", "a:b"], 2, "'a:b' is no name of a user"),
    ],
)
def test_what_is_wrong_with_an_option_is_said(
    words: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOLKMOOT_ZOOKEEPER", "127.0.0.1:1")
    with open("/dev/null") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main(["registry", "--port", "0", *words]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("folkmoot: ")
    assert said in told.err
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("library", ["fastavro", "prometheus_client", "starlette", "uvicorn"])
def test_a_library_that_is_missing_is_named_with_the_command_that_installs_it(
    library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to `folkmoot dev`, which goes without the server then."""
    monkeypatch.setattr(registry, "find_spec", lambda name: None if name == library else name)
    assert registry.missing_library() == library
    assert main(["registry", "--zookeeper", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == (
        f"folkmoot: the registry's server needs {library}, which is not installed: "
        f"{pip_command('server')}\n"
    )
