"""`folkmoot group`: groups with and without members."""

import io
import json
import os
import socket
from typing import Any

import pytest

from folkmoot.console.cluster.group import headline, lines_of
from folkmoot.console.main import main
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination.groups.history import Entry, Move
from tests.console.cluster import Shell
from tests.consumers.parts import until


def described(shell: Shell) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        shell.done("group", "describe", shell.group, "-o", "json")
    )
    return rows


def listed(shell: Shell) -> dict[str, Any]:
    rows = json.loads(shell.done("group", "list", "-o", "json"))
    return {row["group"]: row for row in rows}[shell.group]  # type: ignore[no-any-return]


def test_a_running_group_shows_who_owns_what_and_how_far_it_is(shell: Shell) -> None:
    shell.done("produce", shell.topic, "--partition", "1", stdin="1\n2\n3\n")
    options: dict[str, Any] = {"group": shell.group, "topics": [shell.topic]}
    with Consumer(zookeeper=shell.zookeeper, client_id="me", **options) as consumer:
        until(consumer, lambda: len(consumer.assignment()) == 2)
        part = next(each for each in consumer.assignment() if each.partition == 1)
        consumer.seek(part, 0)
        until(consumer, lambda: consumer.position(part) == 3)
        consumer.commit({part: 2})
        rows = described(shell)
        assert [(row["topic"], row["partition"]) for row in rows] == [
            (shell.topic, 0),
            (shell.topic, 1),
        ]
        assert [(row["committed"], row["latest"], row["lag"]) for row in rows] == [
            (None, 0, 0),
            (2, 3, 1),
        ]
        assert all(row["owner"].startswith("me-") and row["state"] == "stable" for row in rows)
        assert all(row["epoch"] >= 1 for row in rows)
        row = listed(shell)
        assert (row["state"], row["members"], row["partitions"]) == ("stable", 1, 2)
        code, table, said = shell.run("group", "describe", shell.group)
        assert code == 0
        assert table.split()[:5] == ["topic", "partition", "owner", "host", "pid"]
        assert said.startswith(f"group {shell.group} is stable: 1 member, generation ")
        assert rows[0]["behind"] == 0
        assert 0 < rows[1]["behind"] < 60


def test_a_group_without_members_keeps_its_offsets(shell: Shell) -> None:
    shell.done("produce", shell.topic, "--partition", "1", stdin="1\n2\n3\n")
    shell.done("consume", shell.topic, "--group", shell.group, "-n", "2")
    rows = described(shell)
    assert [(row["owner"], row["state"]) for row in rows] == [(None, "unowned")] * 2
    assert (rows[1]["committed"], rows[1]["latest"], rows[1]["lag"]) == (2, 3, 1)
    assert (listed(shell)["state"], listed(shell)["members"]) == ("empty", 0)


def test_a_group_whose_topic_was_deleted_is_still_shown(shell: Shell) -> None:
    shell.done("produce", shell.topic, stdin="a\n")
    shell.done("consume", shell.topic, "--group", shell.group)
    shell.done("topic", "delete", shell.topic, "--yes")
    assert all(row["latest"] is None for row in described(shell))


def test_members_are_shown_with_what_they_want_and_have(shell: Shell) -> None:
    options: dict[str, Any] = {"group": shell.group, "topics": [shell.topic], "pattern": "x-.*"}
    with Consumer(zookeeper=shell.zookeeper, instance_id="w1", **options) as consumer:
        until(consumer, lambda: len(consumer.assignment()) == 2)
        (row,) = json.loads(shell.done("group", "members", shell.group, "-o", "json"))
        assert (row["instance"], row["topics"]) == ("w1", [shell.topic, "/x-.*/"])
        assert (row["partitions"], row["revoke_timeout"]) == (
            [f"{shell.topic}-0", f"{shell.topic}-1"],
            2,
        )
        assert (row["host"], row["pid"]) == (socket.gethostname(), os.getpid())
        owners = [(each["owner"], each["host"], each["pid"]) for each in described(shell)]
        assert owners == [("w1=", row["host"], row["pid"])] * 2
        assert (row["assignors"], row["protocol"]) == (["sticky"], 1)
        assert 0 <= row["age"] < 60
        assert " 2 " in shell.done("group", "members", shell.group).splitlines()[1]


def test_a_group_is_deleted_after_a_question_and_not_while_it_has_members(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.done("produce", shell.topic, stdin="1\n")
    with Consumer(zookeeper=shell.zookeeper, group=shell.group, topics=[shell.topic]) as consumer:
        until(consumer, lambda: len(consumer.assignment()) == 2)
        said = shell.refused(4, "group", "delete", shell.group, "--yes")
        assert said.startswith(f"folkmoot: group {shell.group} has live members: stop them first")
        shell.done("group", "delete", shell.group, "--yes", "--force")
        # Once it has seen that, it makes the group anew.
        until(consumer, lambda: shell.group in shell.done("group", "list").split())
        until(consumer, lambda: len(consumer.assignment()) == 2)
    for said, code in (("no", 4), (shell.group, 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{said}\n"))
        assert main(["group", "delete", shell.group]) == code
    assert "does not exist" in shell.refused(1, "group", "delete", shell.group, "--yes")


def test_what_a_group_committed_of_one_topic_is_forgotten_after_a_question(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("group", "delete-offsets", shell.group, "--topic", shell.topic)
    assert "does not exist" in shell.refused(1, *words, "--yes")
    shell.done("produce", shell.topic, stdin="1\n")
    with Consumer(zookeeper=shell.zookeeper, group=shell.group, topics=[shell.topic]) as consumer:
        until(consumer, lambda: len(consumer.assignment()) == 2)
        assert "has live members" in shell.refused(4, *words, "--yes")
    shell.done("topic", "delete", shell.topic, "--yes")
    assert {row["state"] for row in described(shell)} == {"deleted"}
    for said, code in (("no", 4), (shell.group, 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{said}\n"))
        assert main([*words]) == code
    assert described(shell) == []
    assert "has no offsets of topic" in shell.refused(1, *words, "--yes")


def test_what_happened_in_a_group_is_told_in_words_and_as_json(shell: Shell) -> None:
    shell.done("produce", shell.topic, "--partition", "1", stdin="1\n2\n3\n")
    shell.done("consume", shell.topic, "--group", shell.group, "-n", "2")
    shell.done("group", "reset", shell.group, "--to-earliest", "--execute")
    lines = shell.done("group", "events", shell.group).splitlines()
    assert " UTC  generation 1" in lines[0]
    assert " UTC  no plan since" in lines[3]
    assert lines[4] == f"{lines[1].removesuffix(' joined')}: left"
    assert lines[1].endswith(" joined")
    assert lines[2].startswith(f"    2 partitions of {shell.topic} from nobody to ")
    assert lines[-3].endswith(" UTC  reset by folkmoot-admin")
    assert lines[-2:] == [f"    {shell.topic}-0 to 0", f"    {shell.topic}-1 to 0"]
    (row,) = json.loads(shell.done("group", "events", shell.group, "-n", "1", "-o", "json"))
    assert row["reset"] == {f"{shell.topic}-0": 0, f"{shell.topic}-1": 0}
    (first, *_) = json.loads(shell.done("group", "events", shell.group, "-o", "json"))
    assert (first["generation"], first["moved"], first["left"]) == (1, 2, {})
    assert "does not exist" in shell.refused(1, "group", "events", "nobody")


def test_an_unknown_group_is_refused(shell: Shell) -> None:
    said = shell.refused(1, "group", "describe", "nobody")
    assert said == "folkmoot: group nobody does not exist: see `folkmoot group list`\n"
    assert "no name" in shell.refused(2, "group", "describe", "no name")


def test_an_entry_is_told_line_by_line() -> None:
    """Who came and went and why, and what moved."""
    entry = Entry(
        1_767_225_600_250,
        7,
        "b",
        joined={"c": "was x: the ZooKeeper session was lost"},
        left={"a": "its process died"},
        moved=300,
        moves=[Move("t", 0, "a", "b"), Move("t", 1, "a", "b"), Move("t", 2, None, "c")],
    )
    assert headline(entry) == "2026-01-01 00:00:00.250 UTC  generation 7"
    assert lines_of(entry) == [
        "c joined (was x: the ZooKeeper session was lost)",
        "a: its process died",
        "2 partitions of t from a to b",
        "1 partition of t from nobody to c",
        "300 partitions in all",
    ]
    assert lines_of(Entry(0, 8)) == ["nothing moved"]
    assert lines_of(Entry(0, by="me", moved=3, reset={"t-0": 5})) == [
        "t-0 to 5",
        "and 2 partitions more",
    ]
