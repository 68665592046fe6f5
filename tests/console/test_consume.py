"""`folkmoot consume`: what is shown, from where, until when, and what a group remembers of it."""

import json
import os
import select
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from folkmoot.console.options.cluster import ENVIRONMENT
from folkmoot.coordination import topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import pip_command
from tests.console.cluster import Shell, without, without_waits
from tests.waiting import eventually

SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "%s"}]}'


def fill(shell: Shell, *values: int, partition: int = 0) -> None:
    lines = "".join(f"{value}\n" for value in values)
    shell.done("produce", shell.topic, "--partition", str(partition), stdin=lines)


def stop(child: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """Exit code and stderr after a signal."""
    child.send_signal(number)
    code = child.wait(30)
    assert child.stderr is not None
    return code, without_waits(child.stderr.read())


# -- from where, until when -----------------------------------------------------------------------


def test_once_through_shows_every_record_of_every_partition(shell: Shell) -> None:
    fill(shell, 1, 2, partition=0)
    fill(shell, 3, partition=1)
    assert shell.lines() == ["0@0 1", "0@1 2", "1@0 3"]
    assert shell.lines("--partition", "1") == ["1@0 3"]
    assert shell.lines("--partition", "1", "--partition", "0") == ["0@0 1", "0@1 2", "1@0 3"]


def test_an_option_of_the_consumer_can_be_given(shell: Shell) -> None:
    fill(shell, 1, partition=0)
    assert shell.lines("--set", "fetch_max_wait=1s") == ["0@0 1"]  # as docs/clients.md has it


def test_an_empty_topic_has_nothing_to_show(shell: Shell) -> None:
    assert shell.done("consume", shell.topic) == ""


def test_from_an_offset_shows_what_lies_at_it_and_behind(shell: Shell) -> None:
    fill(shell, *range(10))
    code, out, err = shell.run("consume", shell.topic, "--from", "7", "-o", "raw")
    assert (code, out.split()) == (0, ["7", "8", "9"])
    assert err == f"folkmoot: {shell.topic}-1 ends before offset 7: at 0\n"


def test_so_many_records_are_shown_and_no_more(shell: Shell) -> None:
    fill(shell, *range(1_000))
    for count in (1, 3, 700):
        shown = shell.done("consume", shell.topic, "-n", str(count), "-o", "raw").split()
        assert shown == [str(number) for number in range(count)]


def test_following_from_an_offset_shows_what_comes(shell: Shell) -> None:
    fill(shell, *range(10))
    child = shell.start("consume", shell.topic, "--from", "8", "--follow", "--partition", "0")
    assert child.stdout is not None
    assert [child.stdout.readline() for _ in range(2)] == ["0@8 8\n", "0@9 9\n"]
    fill(shell, 10)
    assert child.stdout.readline() == "0@10 10\n"
    assert stop(child, signal.SIGTERM) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_from_the_end_follows_until_it_is_told_to_stop(
    shell: Shell, number: signal.Signals
) -> None:
    fill(shell, 1)
    child = shell.start("consume", shell.topic, "--from", "latest", "-o", "json")
    assert child.stdout is not None
    more = iter(range(2, 1_000))

    def shown() -> bool:
        fill(shell, next(more))  # only what comes after it has begun can be seen
        return bool(select_line(child))

    eventually(shown, 30.0)
    assert json.loads(child.stdout.readline())["offset"] >= 1
    assert stop(child, number) == (0, "")


def select_line(child: subprocess.Popen[str]) -> bool:
    assert child.stdout is not None
    poller = select.poll()  # `select.select` takes no descriptor above 1,023
    poller.register(child.stdout, select.POLLIN)
    return bool(poller.poll(200))


def test_a_reader_that_has_enough_ends_it_quietly(shell: Shell) -> None:
    fill(shell, *range(20_000))
    child = shell.start("consume", shell.topic, "--follow")
    assert child.stdout is not None
    assert child.stdout.readline() == "0@0 0\n"
    child.stdout.close()
    assert child.wait(30) == 0
    assert child.stderr is not None
    assert without_waits(child.stderr.read()) == ""


def test_from_a_time_shows_what_was_written_then_and_later(shell: Shell) -> None:
    now = time.time_ns() // 1_000_000
    with Producer(zookeeper=shell.zookeeper) as producer:
        for hours in (3, 2, 1):
            producer.send(
                shell.topic, b"%d" % hours, partition=0, timestamp=now - hours * 3_600_000
            )
        producer.send(shell.topic, b"old", partition=1, timestamp=now - 9 * 3_600_000)
    ago = datetime.fromtimestamp(now / 1000 - 2.5 * 3_600, UTC)
    for words in (("--from", "-2h30m"), ("--from", ago.isoformat()), ("--from=-PT150M",)):
        assert shell.lines(*words) == ["0@1 2", "0@2 1"]
    assert shell.lines("--from", "-1m") == []
    assert len(shell.lines("--from", "-9999d")) == len(shell.lines("--from", "2001-01-01")) == 4


def test_the_last_records_are_those_before_the_ends_of_the_partitions(shell: Shell) -> None:
    fill(shell, *range(100))
    fill(shell, 7, partition=1)
    assert shell.lines("--last", "2") == ["0@98 98", "0@99 99", "1@0 7"]
    assert shell.lines("--last", "1", "--partition", "0") == ["0@99 99"]
    assert len(shell.lines("--last", "1000")) == 101


# -- groups ---------------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_was(shell: Shell) -> None:
    fill(shell, *range(10))
    words = ("consume", shell.topic, "--group", shell.group, "-o", "raw")
    assert shell.done(*words, "-n", "3").split() == ["0", "1", "2"]
    assert shell.done(*words, "-n", "2").split() == ["3", "4"]
    assert shell.done(*words).split() == ["5", "6", "7", "8", "9"]
    assert shell.done(*words) == ""
    fill(shell, 10)
    assert shell.done(*words).split() == ["10"]


def test_a_group_that_begins_at_the_end_shows_what_comes_after_it(shell: Shell) -> None:
    fill(shell, 1)
    words = ("consume", shell.topic, "--group", shell.group, "-o", "raw")
    assert shell.done(*words, "--from", "latest") == ""


def test_a_member_that_is_told_to_stop_commits_what_it_has_shown(shell: Shell) -> None:
    fill(shell, *range(10))
    child = shell.start("consume", shell.topic, "--group", shell.group, "--follow")
    assert child.stdout is not None
    assert [child.stdout.readline() for _ in range(10)][-1] == "0@9 9\n"
    assert stop(child, signal.SIGTERM) == (0, "")
    assert shell.done("consume", shell.topic, "--group", shell.group) == ""


def test_a_member_whose_reader_is_gone_does_not_commit_what_was_not_shown(shell: Shell) -> None:
    fill(shell, *range(5_000))
    child = shell.start("consume", shell.topic, "--group", shell.group, "-o", "raw")
    assert child.stdout is not None
    child.stdout.close()
    assert child.wait(30) == 0
    words = ("consume", shell.topic, "--group", shell.group, "-o", "raw")
    assert shell.done(*words, "-n", "1").split() == ["0"]


def test_a_member_for_which_there_is_no_partition_says_so_and_ends(shell: Shell) -> None:
    fill(shell, 1)
    words = ("consume", shell.topic, "--group", shell.group)
    others = [shell.start(*words, "--follow") for _ in range(2)]

    def each_has_one() -> bool:
        rows = json.loads(shell.done("group", "members", shell.group, "-o", "json"))
        return [len(row["partitions"]) for row in rows] == [1, 1]

    eventually(lambda: shell.group in shell.done("group", "list"), 30.0)
    eventually(each_has_one, 30.0)
    third = shell.start(*words)
    out, err = third.communicate(timeout=30)
    assert (out, without_waits(err)) == (
        "",
        "folkmoot: this member shows nothing: "
        f"group {shell.group} has no partition of {shell.topic} for it\n",
    )
    assert third.returncode == 0
    for other in others:
        assert stop(other, signal.SIGTERM) == (0, "")


def test_without_a_broker_a_member_says_so_and_ends(
    shell: Shell, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = connector(chroot)(6.0)
    try:
        execute(session, topics.create("t", 1, [1]))
    finally:
        session.close()
    expected = f"no broker is registered: is one running? (the cluster at {chroot})"
    for words in ((), ("--group", shell.group)):
        asked = ("consume", "t", *words, "--zookeeper", chroot, "--timeout")
        # A busy machine may need longer to find ZooKeeper, which is the other thing that can be away.
        assert any(expected in shell.refused(3, *asked, each) for each in ("0.3", "3", "12"))


# -- how it looks ---------------------------------------------------------------------------------


def test_text_shows_keys_and_lets_nothing_move_the_cursor(shell: Shell) -> None:
    with Producer(zookeeper=shell.zookeeper) as producer:
        producer.send(shell.topic, "grüße".encode(), b"k", partition=0)
        producer.send(shell.topic, b"two\nlines \x1b[2J", partition=0)
        producer.send(shell.topic, b"\xff\x00", b"\xfe", partition=0)
        producer.send(shell.topic, None, b"gone", partition=0)
    assert shell.lines() == [
        "0@0 k: grüße",
        r"0@1 two\nlines \x1b[2J",
        "0@2 0xfe: 0xff00",
        "0@3 gone: null",
    ]


def test_json_has_every_field_one_object_a_line(shell: Shell) -> None:
    with Producer(zookeeper=shell.zookeeper) as producer:
        headers = [("a", b"1"), ("b", None), ("c", b"\xff")]
        producer.send(shell.topic, b"v", b"k", partition=1, headers=headers, timestamp=1_500)
        producer.send(shell.topic, None, partition=1, timestamp=300_000_000_000_000)
    first, second = map(json.loads, shell.lines("-o", "json"))
    assert first == {
        "topic": shell.topic,
        "partition": 1,
        "offset": 0,
        "timestamp": "1970-01-01T00:00:01.500+00:00",
        "key": "k",
        "value": "v",
        "headers": [["a", "1"], ["b", None], ["c", {"base64": "/w=="}]],
        "schema_id": None,
    }
    assert (second["value"], second["timestamp"]) == (None, 300_000_000_000_000)


def test_raw_is_the_bytes_and_a_line_end(shell: Shell) -> None:
    with Producer(zookeeper=shell.zookeeper) as producer:
        producer.send(shell.topic, b"\xff\x00", partition=0)
    child = shell.start("consume", shell.topic, "-o", "raw")
    assert child.stdout is not None
    assert child.wait(30) == 0
    assert os.read(child.stdout.fileno(), 100) == b"\xff\x00\n"


def test_a_format_shows_what_it_names(shell: Shell) -> None:
    with Producer(zookeeper=shell.zookeeper) as producer:
        producer.send(shell.topic, b"v", b"key", partition=1, timestamp=1_500)
    words = ("consume", shell.topic, "--format", r"%t %p@%o %k: %s %T\n")
    assert shell.done(*words) == f"{shell.topic} 1@0 key: v 1500\n"


def test_values_are_decoded_by_the_schema_that_each_was_written_with(
    shell: Shell, tmp_path: Path
) -> None:
    shell.done("schema", "compat", f"{shell.topic}-value", "--set", "NONE")
    for kind, line in (("int", '{"n": 1}'), ("string", '{"n": "x"}')):
        path = tmp_path / f"{kind}.avsc"
        path.write_text(SCHEMA % kind)
        words = ("--value-schema", str(path), "--partition", "0")
        shell.done("produce", shell.topic, *words, stdin=line)
    shown = [json.loads(line) for line in shell.lines("-o", "json")]
    assert [each["value"] for each in shown] == [{"n": 1}, {"n": "x"}]
    assert shown[0]["schema_id"] != shown[1]["schema_id"]
    assert shell.lines() == ['0@0 {"n": 1}', '0@1 {"n": "x"}']


def test_numbers_that_json_does_not_have_are_strings_in_it(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "r.avsc"
    path.write_text(SCHEMA.replace('"%s"', '{"type": "array", "items": "double"}'))
    words = ("--value-schema", str(path), "--partition", "0")
    line = '{"n": [NaN, Infinity, -Infinity, 1.5]}'
    shell.done("produce", shell.topic, *words, stdin=line)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    (shown,) = shell.lines("-o", "json")
    found = json.loads(shown, parse_constant=refuse)
    assert found["value"] == {"n": ["NaN", "Infinity", "-Infinity", 1.5]}
    assert shell.lines() == ['0@0 {"n": ["NaN", "Infinity", "-Infinity", 1.5]}']


def test_values_are_read_as_the_readers_schema_says(shell: Shell, tmp_path: Path) -> None:
    first, second, other = (tmp_path / f"{number}.avsc" for number in range(3))
    number, note = (
        {"name": "number", "type": "int"},
        {"name": "note", "type": "string", "default": "-"},
    )
    for path, fields in (
        (first, [number]),
        (second, [note, {**number, "type": "long"}]),
        (other, [{"name": "gate", "type": "string"}]),
    ):
        path.write_text(json.dumps({"type": "record", "name": "R", "fields": fields}))
    for path, line in ((first, '{"number": 1}'), (second, '{"number": 2, "note": "n"}')):
        written = ("--value-schema", str(path), "--partition", "0")
        shell.done("produce", shell.topic, *written, stdin=line)
    as_second = ("--reader-schema", str(second), "--format", "%s\\n")
    assert shell.lines(*as_second) == ['{"note": "-", "number": 1}', '{"note": "n", "number": 2}']
    words = ("--reader-schema", str(other))
    said = shell.refused(1, "consume", shell.topic, *words)
    assert f"{shell.topic}-0, offset 0: " in said
    assert "gate" in said
    other.write_text("{")
    assert "not JSON" in shell.refused(1, "consume", shell.topic, *words)
    words = ("--reader-schema", "nowhere")
    assert "nowhere cannot be read" in shell.refused(2, "consume", shell.topic, *words)


def test_what_has_no_such_schema_is_shown_as_bytes(shell: Shell) -> None:
    values = [b"\0\x7f\xff\xff\xffbody", b"\0\0\0\0", b"\0"]
    with Producer(zookeeper=shell.zookeeper) as producer:
        for value in values:
            producer.send(shell.topic, value, partition=0)
    shown = [json.loads(line) for line in shell.lines("-o", "json")]
    binary = {"base64": "AH////9ib2R5"}
    assert [each["value"] for each in shown] == [binary, "\0\0\0\0", "\0"]
    assert [each["schema_id"] for each in shown] == [None] * 3


def test_without_fastavro_values_are_bytes_and_the_pip_command_is_named_once(
    shell: Shell, tmp_path: Path
) -> None:
    path = tmp_path / "r.avsc"
    path.write_text(SCHEMA % "int")
    words = ("--value-schema", str(path), "--partition", "0")
    shell.done("produce", shell.topic, *words, stdin='{"n": 1}\n{"n": 2}\n')
    child = shell.start("consume", shell.topic, site=without(tmp_path / "site", "fastavro"))
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0
    assert out.count(r"\x00") >= 2
    assert err.count(pip_command("avro")) == without_waits(err).count("\n") == 1


# -- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words", "sentence"),
    [
        (1, ["--partition", "2"], "partition 2 does not exist: topic t-"),
        (
            2,
            ["--from", "yesterday"],
            "'yesterday' is neither earliest, latest, an offset nor a time",
        ),
        (2, ["--from", "-1"], "'-1' is neither"),
        (2, ["--format", "%y"], "%y is not known, only %t %p"),
        (2, ["--group", "g", "--last", "5"], "--from an offset or a time, without --group"),
        (2, ["--group", "g", "--from", "5"], "--from an offset or a time, without --group"),
        (2, ["--group", "g", "--partition", "0"], "use --partition without --group"),
        (2, ["--group", "no name"], "no name"),
        (2, ["--group", ""], "group name '' is not allowed"),
        (2, ["--group", "", "--from", "5"], "group name '' is not allowed"),
        (2, ["--group", "", "--partition", "0"], "group name '' is not allowed"),
    ],
)
def test_what_makes_no_sense_is_refused(
    shell: Shell, code: int, words: list[str], sentence: str
) -> None:
    if words[:1] == ["--from"]:
        words = [f"--from={words[1]}"]
    assert sentence in shell.refused(code, "consume", shell.topic, *words)


def test_an_unknown_topic_is_refused_and_makes_no_group(shell: Shell) -> None:
    for words in ((), ("--group", shell.group), ("--follow",)):
        said = shell.refused(1, "consume", "no-such-topic", *words)
        assert "topic no-such-topic does not exist: create it with" in said
    assert shell.group not in shell.done("group", "list")


@pytest.mark.parametrize("words", [["-n", "0"], ["-n", "many"], ["-o", "xml"], ["--fly"]])
def test_wrong_words_are_a_usage_error(shell: Shell, words: list[str]) -> None:
    assert shell.run("consume", shell.topic, *words)[0] == 2


@pytest.mark.parametrize(
    "words",
    [("consume", "t"), ("consume", "t", "--group", "g"), ("produce", "t"), ("group", "list")],
)
def test_an_unreachable_zookeeper_is_exit_code_3(
    words: tuple[str, ...], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "127.0.0.1:1")
    said = shell.refused(3, *words, "--timeout", "0.3", stdin="x\n")
    assert "no ZooKeeper server answers at 127.0.0.1:1" in said
