"""`folkmoot topic alter` and `delete-records`: plans, questions, exit codes."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from folkmoot.console.main import main
from tests.console.cluster import Shell
from tests.console.test_group_offsets import send


def plan(shell: Shell, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        shell.done("topic", "delete-records", shell.topic, "-o", "json", *words)
    )
    return rows


def earliest(shell: Shell) -> list[int]:
    words = ("--before", "0=0", "--before", "1=0")
    return [row["earliest"] for row in plan(shell, *words)]


def test_without_execute_the_plan_is_shown_and_nothing_is_deleted(shell: Shell) -> None:
    send(shell, 10)
    words = ("topic", "delete-records", shell.topic, "--before", "0=4", "--before", "1=latest")
    code, out, err = shell.run(*words)
    assert (code, err) == (0, "nothing was deleted: add --execute to do it\n")
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["0", "0", "4", "10", "4"],
        ["1", "0", "0", "0", "0"],
    ]
    assert len(shell.lines()) == 10
    code, out, err = shell.run(*words, "--execute")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split() == ["0", "0", "4", "10", "4"]
    assert len(shell.lines()) == 6
    assert earliest(shell) == [4, 0]
    assert plan(shell, "--before", "0=1", "--execute")[0]["new_earliest"] == 4


def test_offsets_come_from_a_file_or_by_a_time(shell: Shell, tmp_path: Path) -> None:
    send(shell, 10)
    file = tmp_path / "offsets"
    for text in ("# what nobody needs\n\n0=3  # of ten\n1=0\n", "\ufeff0=3\n1=0\n"):
        file.write_text(text)
        assert [row["given_up"] for row in plan(shell, "--file", str(file))] == [3, 0]
    assert [row["given_up"] for row in plan(shell, "--before-time", "2001-01-01T00:00Z")] == [0, 0]
    assert [row["given_up"] for row in plan(shell, "--before-time", "2999-01-01")] == [10, 0]
    assert [row["given_up"] for row in plan(shell, "--before-time", "-7d")] == [0, 0]
    assert plan(shell, "--before-time", "2999-01-01", "--execute")[0]["given_up"] == 10
    assert earliest(shell) == [10, 0]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ((), 2, "either --before or --file, or --before-time"),
        (("--before", "0=1", "--before-time", "2001-01-01"), 2, "either --before"),
        (("--before", "0"), 2, "write PARTITION=OFFSET"),
        (("--before", "x=1"), 2, "write PARTITION=OFFSET"),
        (("--before", "0=-1"), 2, "is no offset"),
        (("--before", "0=1", "--before", "0=2"), 2, "named twice"),
        (("--before-time", "yesterday"), 2, "or as in -15m for 15 minutes ago"),
        (("--file", "no-such-file"), 2, "no-such-file cannot be read: No such file or directory\n"),
        (("--before", "0=1"), 1, "ends at 0"),
        (("--before", "2=0"), 1, "only 0 to 1"),
        (("--before", "0=0", "--zookeeper", "127.0.0.1:1", "--timeout", "0.3"), 3, "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_deleted_is_one_line_and_an_exit_code(
    shell: Shell, words: tuple[str, ...], code: int, sentence: str
) -> None:
    for execute in ((), ("--execute",)):
        err = shell.refused(code, "topic", "delete-records", shell.topic, *words, *execute)
        assert sentence in err


def test_a_missing_topic_is_said(shell: Shell) -> None:
    err = shell.refused(1, "topic", "delete-records", "no-such-topic", "--before", "0=0")
    assert "topic no-such-topic does not exist" in err


def test_adding_partitions_warns_that_keys_map_anew_and_asks(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["topic", "alter", shell.topic, "--partitions", "3"]
    for typed, code in (("", 4), ("yes\n", 4), (f"{shell.topic}\n", 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        capsys.readouterr()
        assert main(words) == code
        assert "most keys" in capsys.readouterr().err
    described = json.loads(shell.done("topic", "describe", shell.topic, "-o", "json"))
    assert [each["partition"] for each in described] == [0, 1, 2]
    said = shell.done("topic", "alter", shell.topic, "--partitions", "5", "--yes")
    assert said == f"topic {shell.topic} has 5 partitions now, 3 before\n"
    shell.refused(2, "topic", "alter", shell.topic, "--partitions", "5", "--yes")
    shell.refused(2, "topic", "alter", shell.topic, "--partitions", "4")
    shell.refused(1, "topic", "alter", "no-such-topic", "--partitions", "4", "--yes")
