"""`folkmoot schema import` and `export` beside a registry that others wrote."""

import http.client
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from folkmoot.console.running.children import free_port
from tests.console.schema.conftest import Terminal
from tests.foreign.conftest import need
from tests.waiting import eventually

pytestmark = pytest.mark.schemas

BASE = "/apis/ccompat/v7"
GONE = {"schema": '"bytes"'}
KIND = {"schema": '{"type":"enum","name":"Kind","symbols":["A","B"]}'}
KINDS = {
    "schema": '{"type":"array","items":"Kind"}',
    "references": [{"name": "Kind", "subject": "kind", "version": 1}],
}


def asked(address: str, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, BASE + path, sent, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        assert answer.status == 200, said
        return said
    finally:
        connection.close()


@pytest.fixture(scope="module")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    (jar,) = (need("apicurio") / "server").glob("*-runner.jar")
    host, port = "127.0.0.1", free_port()
    address = f"{host}:{port}"
    log = Path(tmp_path_factory.mktemp("apicurio")) / "log"
    words = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    words += [f"-Dquarkus.http.host={host}", f"-Dquarkus.http.port={port}", "-jar", str(jar)]
    with (
        log.open("wb") as output,
        subprocess.Popen(words, cwd=log.parent, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:

            def is_up() -> bool:
                assert process.poll() is None, log.read_text()[-2000:]
                try:
                    return bool(asked(address, "GET", "/subjects") == [])
                except (OSError, ValueError, AssertionError):
                    return False

            eventually(is_up, 120)
            yield address
        finally:
            process.kill()


def test_schemas_come_from_apicurio_with_their_ids_and_none_go_where_ids_are_not_kept(
    apicurio: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ids = {
        subject: asked(apicurio, "POST", f"/subjects/{subject}/versions", body)["id"]
        for subject, body in (("gone", GONE), ("kind", KIND), ("kinds", KINDS))
    }
    asked(apicurio, "DELETE", "/subjects/gone")
    terminal, url = Terminal(tmp_path, monkeypatch, capsys), f"http://{apicurio}{BASE}"
    code, said, noted = terminal.run("import", url)
    assert (code, said) == (0, "copied 2 versions; 0 were there\n")
    assert noted.startswith("folkmoot: left out gone version 1, which was deleted")
    ours = terminal.registry()
    for subject in ("kind", "kinds"):
        assert ours.version(subject, 1).id == ids[subject]
        there = asked(apicurio, "GET", f"/subjects/{subject}/versions/1")
        assert ours.version(subject, 1).schema == there["schema"]
    assert ours.resolved(ids["kinds"]).count("symbols") == 1
    assert terminal.done("import", url) == "copied 0 versions; 2 were there\n"
    ours.register("new", '"int"')
    assert "has no modes" in terminal.refused(1, "export", url)
    assert asked(apicurio, "GET", "/subjects") == ["kind", "kinds"]
