"""`folkmoot completion`: what words may become, and that a shell asks for it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from folkmoot.console.completion import SHELLS, VARIABLE, Zsh
from folkmoot.console.main import COMMANDS, cli, main
from folkmoot.console.options import names
from folkmoot.coordination.zookeeper.kazoo_adapter import CONNECT_TIMEOUT
from tests.console.cluster import Shell, completed


def test_commands_actions_options_and_choices_are_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FOLKMOOT_ZOOKEEPER", raising=False)
    assert completed("") == sorted(COMMANDS)
    assert completed("co") == ["completion", "consume", "controller"]
    assert completed("topic", "del") == ["delete", "delete-records"]
    assert completed("topic", "create", "t", "--pa") == ["--partitions"]
    assert completed("consume", "t", "-o", "") == ["text", "json", "raw"]
    assert completed("completion", "") == list(SHELLS)


@pytest.mark.parametrize(
    "words",
    [
        ["produce", "t", "--file", ""],
        ["log", "verify", "/"],
        ["group", "import", "g", "/t"],
        ["group", "reset", "g", "--from-file", "/t"],
        ["group", "reset", "g", "--from-file=/t"],
        ["produce", "t", "--value-schema", "/t"],
        ["dev", "--data", "/t"],
        ["spark", "run", "/t"],
        ["spark", "run", "replay", "/t"],
    ],
)
def test_where_a_file_may_stand_the_shell_completes_files(words: list[str]) -> None:
    *before, word = words
    found = Zsh(cli, {}, "folkmoot", VARIABLE).get_completions(before, word)
    assert [each.type for each in found] == ["file"]


def test_names_of_topics_groups_subjects_and_brokers_are_completed(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "COMPLETION_TIMEOUT", 30.0)
    where = ["--topic", shell.topic, "--to-earliest", "--execute"]
    shell.done("group", "reset", shell.group, *where)
    begun = shell.topic[:-1]  # other tests' topics have random names, too
    for before in (
        *(["topic", "describe"], ["topic", "offsets", "-o", "json"], ["consume", "-o", "raw"]),
        *(["log", "sizes", "another"], ["group", "reset", "g", "--topic"]),
    ):
        assert completed(*before, begun) == [shell.topic]
    for before in ["group", "describe"], ["consume", "t", "--group"]:
        assert completed(*before, shell.group[:-1]) == [shell.group]
    for before in (
        ["topic", "describe", f"--zookeeper={shell.zookeeper}"],
        ["group", "reset", "g"],
    ):
        assert completed(*before, f"--topic={begun}") == [f"--topic={shell.topic}"]
    assert completed("broker", "stop", "") == ["1", "2"]
    file = tmp_path / "s.avsc"
    file.write_text('"long"')
    shell.done("schema", "register", f":.{shell.topic}:s", str(file))
    assert completed("schema", "versions", f":.{shell.topic}:") == [f":.{shell.topic}:s"]
    assert completed("topic", "create", begun) == []
    assert completed("topic", "describe", shell.topic, begun) == []
    monkeypatch.delenv("FOLKMOOT_ZOOKEEPER")
    assert completed("topic", "describe", begun) == []
    words = ["topic", "describe", "--zookeeper", shell.zookeeper, begun]
    assert completed(*words) == [shell.topic]


def test_a_zookeeper_that_is_away_completes_nothing_and_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOLKMOOT_ZOOKEEPER", "127.0.0.1:1")
    began = time.monotonic()
    assert completed("topic", "describe", "") == []
    assert time.monotonic() - began < CONNECT_TIMEOUT - 1.0


def test_bash_shows_what_follows_the_last_character_that_cuts_words(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bash itself cuts `--topic=t` and `:.context:subject` into words of its own."""
    file = tmp_path / "s.avsc"
    file.write_text('"long"')
    shell.done("schema", "register", f":.{shell.topic}:subject", str(file))
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    lines = {
        "folkmoot topic cre": "create",
        "folkmoot topic desc": "describe",
        "folkmoot consume t -o ": "text json raw",
        f"folkmoot topic describe {shell.topic[:-1]}": shell.topic,
        f"folkmoot group reset g --topic={shell.topic[:-1]}": shell.topic,
        f"folkmoot group reset g --topic {shell.topic[:-1]}": shell.topic,
        f"folkmoot schema get :.{shell.topic}:su": "subject",
    }
    for line in lines:
        script += f"COMP_LINE='{line}' COMP_POINT={len(line)}\n"
        script += "_folkmoot_completion folkmoot; echo ${COMPREPLY[@]}\n"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout.splitlines(), done.stderr) == (list(lines.values()), "")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_asks_this_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"{VARIABLE}={shell}_complete" in capsys.readouterr().out
