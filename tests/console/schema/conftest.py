"""The commands on a ZooKeeper in memory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from folkmoot.console.main import main
from folkmoot.console.options import cluster as options
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.memory_zookeeper import MemoryZooKeeper

NUMBER = {"name": "number", "type": "long"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
GATE = {"name": "gate", "type": "string"}


def record(*fields: dict[str, Any], name: str = "Flight") -> str:
    return json.dumps({"type": "record", "name": name, "fields": fields})


class Terminal:
    """Runs `folkmoot schema ...` on the cluster that is chosen; files have the names that tests give."""

    def __init__(
        self,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self._directory = directory
        self._capsys = capsys
        self.ensemble = MemoryZooKeeper()
        monkeypatch.setenv(options.ENVIRONMENT, "memory:1")
        monkeypatch.setattr(options.Cluster, "connect", lambda cluster: self.ensemble.connect)

    def registry(self) -> SchemaRegistry:
        return SchemaRegistry(self.ensemble.connect())

    def file(self, text: str, name: str = "schema.avsc") -> str:
        path = self._directory / name
        path.write_text(text)
        return str(path)

    def path(self, name: str) -> Path:
        return self._directory / name

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self._capsys.readouterr()
        code = main(["schema", *words])
        out, err = self._capsys.readouterr()
        return code, out, err

    def done(self, *words: str) -> str:
        code, out, err = self.run(*words)
        assert code == 0, err
        return out

    def told(self, *words: str) -> Any:
        return json.loads(self.done(*words, "-o", "json"))

    def refused(self, code: int, *words: str) -> str:
        """The one line of a command that is to fail."""
        ended, _, err = self.run(*words)
        assert (ended, err.count("\n"), err[:10]) == (code, 1, "folkmoot: "), err
        return err


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    return Terminal(tmp_path, monkeypatch, capsys)


Typed = Callable[[str], None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """What the user types."""
    import io

    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))
