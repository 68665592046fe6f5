"""`folkmoot completion`: what words may become, and that a shell asks for it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from folkmoot.console import completion
from folkmoot.console.completion import SCRIPTS
from folkmoot.console.main import COMMANDS, main
from folkmoot.coordination.zookeeper.kazoo_adapter import CONNECT_TIMEOUT
from tests.console.cluster import Shell


def completed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["completion", "words", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_commands_actions_options_and_choices_are_completed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOLKMOOT_ZOOKEEPER", raising=False)
    assert completed(capsys, "") == completed(capsys) == list(COMMANDS)
    assert completed(capsys, "co") == ["controller", "consume", "completion"]
    assert completed(capsys, "topic", "del") == ["delete", "delete-records"]
    assert completed(capsys, "topic", "create", "t", "--pa") == ["--partitions"]
    assert completed(capsys, "consume", "t", "-o", "") == ["text", "json", "raw"]
    assert completed(capsys, "completion", "") == list(SCRIPTS)


def test_names_of_topics_and_groups_are_completed(
    shell: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "PATIENCE", 30.0)
    where = ["--topic", shell.topic, "--to-earliest", "--execute"]
    shell.done("group", "reset", shell.group, *where)
    begun = shell.topic[:-1]  # other tests' topics have random names, too
    for before in (
        *(["topic", "describe"], ["topic", "offsets", "-o", "json"], ["consume", "-o", "raw"]),
        *(["log", "sizes", "another"], ["group", "reset", "g", "--topic"]),
    ):
        assert completed(capsys, *before, begun) == [shell.topic]
    for before in ["group", "describe"], ["consume", "t", "--group"]:
        assert completed(capsys, *before, shell.group[:-1]) == [shell.group]
    assert completed(capsys, "topic", "create", begun) == []
    assert completed(capsys, "topic", "describe", shell.topic, begun) == []
    monkeypatch.delenv("FOLKMOOT_ZOOKEEPER")
    assert completed(capsys, "topic", "describe", begun) == []
    words = ["topic", "describe", "--zookeeper", shell.zookeeper, begun]
    assert completed(capsys, *words) == [shell.topic]


def test_a_zookeeper_that_is_away_completes_nothing_and_is_not_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLKMOOT_ZOOKEEPER", "127.0.0.1:1")
    began = time.monotonic()
    assert completed(capsys, "topic", "describe", "") == []
    assert time.monotonic() - began < CONNECT_TIMEOUT - 1.0


@pytest.mark.parametrize(
    "words", [("produce", "t", "--file", ""), ("log", "verify", "/"), ("produce", "t", "x")]
)
def test_where_a_file_may_stand_nothing_is_said(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed(capsys, *words) == []


def test_bash_asks_for_the_words_and_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    script += "COMP_WORDS=(folkmoot topic cre) COMP_CWORD=2; _folkmoot; echo ${COMPREPLY[@]}\n"
    script += "COMP_WORDS=(folkmoot topic '') COMP_CWORD=2; _folkmoot; echo ${COMPREPLY[1]}\n"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("create\nconfig\n", "")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_script_asks_this_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "folkmoot completion words" in capsys.readouterr().out
