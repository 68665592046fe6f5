"""The command line as a user has it: in this process, or as a process of its own."""

import io
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import click
import pytest

from folkmoot.console.completion import VARIABLE, Zsh
from folkmoot.console.main import cli, main
from folkmoot.console.options import cluster as options

FOLKMOOT = (sys.executable, "-m", "folkmoot.console.main")

_WAITED = re.compile(r"^(no metadata: .*|no ZooKeeper server at .* for now)\n", re.MULTILINE)


def without_waits(stderr: str) -> str:
    """What a program has said, but for servers that stood still, as they may on a busy machine."""
    return _WAITED.sub("", stderr)


def parsed(*words: str) -> dict[str, Any]:
    """What a command line means to its command, which does not run. Raises click.UsageError."""
    with (
        patch.object(click.Command, "invoke", lambda command, context: context.params),
        cli.make_context("folkmoot", list(words)) as context,
    ):
        params: dict[str, Any] = cli.invoke(context)
    return params


def completed(*words: str) -> list[str]:
    """What the last word may become, as zsh is answered."""
    *before, word = words
    found = Zsh(cli, {}, "folkmoot", VARIABLE).get_completions(before, word)
    return [each.value for each in found if each.type == "plain"]


class Shell:
    """Runs commands with FOLKMOOT_ZOOKEEPER set to one cluster; `topic` and `group` are fresh."""

    def __init__(
        self,
        zookeeper: str,
        name: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.zookeeper = zookeeper
        self.topic = f"t-{name}"
        self.group = f"g-{name}"
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self._children: list[subprocess.Popen[str]] = []
        monkeypatch.setenv(options.ENVIRONMENT, zookeeper)

    def run(self, *words: str, stdin: str | bytes = "") -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        self._monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        self._capsys.readouterr()
        code = main(words)
        out, err = self._capsys.readouterr()
        return code, out, err

    def done(self, *words: str, stdin: str | bytes = "") -> str:
        """What a command says that is to succeed."""
        code, out, err = self.run(*words, stdin=stdin)
        assert code == 0, err
        return out

    def refused(self, code: int, *words: str, stdin: str | bytes = "") -> str:
        """The one line of a command that is to fail."""
        ended, _, err = self.run(*words, stdin=stdin)
        assert (ended, err.count("\n"), err[:10]) == (code, 1, "folkmoot: "), err
        return err

    def lines(self, *words: str) -> list[str]:
        """What `consume` shows of the topic, sorted as partitions are read in any order."""
        return sorted(self.done("consume", self.topic, *words).splitlines())

    def start(self, *words: str, site: Path | None = None) -> subprocess.Popen[str]:
        """A process; `site` is a directory whose modules hide installed ones."""
        environment = {**os.environ, options.ENVIRONMENT: self.zookeeper, "PYTHONUNBUFFERED": "1"}
        if site is not None:
            environment["PYTHONPATH"] = str(site)
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            [*FOLKMOOT, *words], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
        )
        self._children.append(child)
        return child

    def close(self) -> None:
        """End what is still running."""
        for child in self._children:
            child.kill()
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()
            child.wait()


def without(site: Path, *names: str) -> Path:
    """A directory in which these packages cannot be imported, as if they were not installed."""
    site.mkdir()
    for name in names:
        (site / f"{name}.py").write_text(f"raise ModuleNotFoundError({name!r}, name={name!r})\n")
    return site
