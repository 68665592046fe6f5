"""`folkmoot group reset|export|import`: plans, files, exit codes."""

import io
import json
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.console.cluster import offset_files
from folkmoot.console.files import write_text
from folkmoot.console.main import main
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.records import TopicPartition
from tests.console.cluster import Shell


def send(shell: Shell, count: int = 10) -> None:
    lines = "".join(f"{number}\n" for number in range(count))
    shell.done("produce", shell.topic, "--partition", "0", stdin=lines)


def reset(shell: Shell, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        shell.done("group", "reset", shell.group, "-o", "json", *words)
    )
    return rows


def committed(shell: Shell) -> list[int | None]:
    rows = json.loads(shell.done("group", "describe", shell.group, "-o", "json"))
    return [row["committed"] for row in rows]


def test_without_execute_the_plan_is_shown_and_nothing_is_reset(shell: Shell) -> None:
    send(shell)
    shell.done("consume", shell.topic, "--group", shell.group, "-n", "6")
    words = ("group", "reset", shell.group, "--topic", f"{shell.topic}:0", "--shift-by", "-2")
    code, out, err = shell.run(*words)
    assert (code, err) == (0, "nothing was reset: add --execute to do it\n")
    assert out.splitlines()[1].split() == [shell.topic, "0", "6", "4", "0", "10"]
    assert committed(shell)[0] == 6
    code, out, err = shell.run(*words, "--execute")
    assert (code, err) == (0, "")
    assert committed(shell)[0] == 4
    assert len(shell.lines("--group", shell.group)) == 6


@pytest.mark.parametrize(
    ("words", "offset"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-offset", "7"), 7),
        (("--to-datetime", "2001-01-01T00:00+01:00"), 0),
        (("--to-datetime", "32503680000000"), 10),
        (("--by-duration", "1h30m"), 0),
        (("--to-datetime", "-1h30m"), 0),
        (("--by-duration", "0s"), 10),
        (("--shift-by", "100"), 10),
    ],
)
def test_a_group_goes_where_it_is_told_to(
    shell: Shell, words: tuple[str, ...], offset: int
) -> None:
    send(shell)
    shell.done("consume", shell.topic, "--group", shell.group, "-n", "6")
    row, *rest = reset(shell, *words, "--topic", f"{shell.topic}:0", "--execute")
    assert (row["committed"], row["new"], rest) == (6, offset, [])
    assert committed(shell)[0] == offset


@pytest.mark.parametrize("name", ["offsets.csv", "offsets.json"])
def test_what_is_exported_can_be_imported_by_another_group(
    shell: Shell, tmp_path: Path, name: str
) -> None:
    send(shell)
    shell.done("consume", shell.topic, "--group", shell.group, "-n", "6")
    file = str(tmp_path / name)
    shell.done("group", "export", shell.group, "--file", file)
    other = f"{shell.group}-2"
    code, out, err = shell.run("group", "import", other, file)
    assert (code, err) == (0, "nothing was reset: add --execute to do it\n")
    assert out.splitlines()[1].split()[:4] == [shell.topic, "0", "-", "6"]
    assert "does not exist" in shell.refused(1, "group", "describe", other)
    shell.done("group", "import", other, file, "--execute")
    assert len(shell.lines("--group", other)) == 4
    reset(shell, "--to-latest", "--execute")
    reset(shell, "--from-file", file, "--execute")
    assert committed(shell)[0] == 6


def test_export_writes_lines_unless_told_otherwise(shell: Shell) -> None:
    send(shell)
    reset(shell, "--to-offset", "3", "--topic", f"{shell.topic}:0", "--execute")
    header, row = shell.done("group", "export", shell.group).splitlines()
    assert header == "topic,partition,offset,topic_id"
    assert row.startswith(f"{shell.topic},0,3,")
    (entry,) = json.loads(shell.done("group", "export", shell.group, "--format", "json"))
    assert (entry["topic"], entry["partition"], entry["offset"]) == (shell.topic, 0, 3)


def test_a_file_keeps_the_offsets_that_it_had_where_there_is_no_room_for_others(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(shell)
    reset(shell, "--to-offset", "3", "--topic", f"{shell.topic}:0", "--execute")
    file = tmp_path / "offsets.csv"
    shell.done("group", "export", shell.group, "--file", str(file))
    former, write = file.read_text(), Path.write_text

    def write_half(path: Path, text: str, **options: Any) -> int:
        write(path, text[: len(text) // 2], **options)
        raise OSError(ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", write_half)
        assert main(["group", "export", shell.group, "--file", str(file)]) == 2
    assert file.read_text() == former
    assert [*tmp_path.iterdir()] == [file]


def test_a_file_is_written_where_its_link_leads_or_it_is_told_why_not(tmp_path: Path) -> None:
    """`/dev/stdout` is a link, and to a file where a shell has directed it to one."""
    file, link = tmp_path / "offsets.csv", tmp_path / "link"
    file.touch()
    link.symlink_to(file)
    write_text(link, "text")
    assert (link.is_symlink(), file.read_text()) == (True, "text")
    with pytest.raises(ConfigError, match="cannot be written: File name too long"):
        write_text(tmp_path / ("x" * 300), "text")


def test_offsets_of_a_topic_made_anew_are_refused(shell: Shell, tmp_path: Path) -> None:
    send(shell)
    reset(shell, "--to-offset", "3", "--topic", f"{shell.topic}:0", "--execute")
    file = str(tmp_path / "offsets.csv")
    shell.done("group", "export", shell.group, "--file", file)
    shell.done("topic", "delete", shell.topic, "--yes")
    shell.done("topic", "create", shell.topic, "--partitions", "2")
    send(shell)
    said = shell.refused(4, "group", "import", shell.group, file, "--execute")
    assert "made anew" in said


def test_offsets_are_not_exported_as_those_of_a_topic_that_is_made_anew_meanwhile(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(shell)
    reset(shell, "--to-offset", "3", "--topic", f"{shell.topic}:0", "--execute")
    read, made = Admin.group_offsets, list[str]()

    def make_anew_behind(admin: Admin, group: str) -> dict[TopicPartition, int]:
        found = read(admin, group)
        if not made:
            admin.delete_topic(shell.topic)
            admin.create_topic(shell.topic, 2)
            made.append(shell.topic)
        return found

    monkeypatch.setattr(Admin, "group_offsets", make_anew_behind)
    (header,) = shell.done("group", "export", shell.group).splitlines()
    assert header == "topic,partition,offset,topic_id"


def test_a_file_of_another_tool_and_the_standard_input_are_read(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(shell)
    text = f"{shell.topic},0,4\n{shell.topic},1,0\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["group", "import", shell.group, "-", "--execute"]) == 0
    assert committed(shell) == [4, 0]


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("where", ["file", "stdin"])
def test_a_byte_order_mark_before_the_offsets_is_no_part_of_them(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, where: str
) -> None:
    send(shell)
    offsets = {TopicPartition(shell.topic, 0): 4}
    text = "\ufeff" + offset_files.format_offsets(offsets, {}, form)
    file = tmp_path / "offsets"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    given = str(file) if where == "file" else "-"
    assert main(["group", "import", shell.group, given, "--execute"]) == 0
    assert committed(shell)[0] == 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "names no partition"),
        ("t,0\n", "line 1 is not understood"),
        ("topic,partition,offset\nt,0,1\nt,0,2\n", "names t-0 twice"),
        ("t,0,-1\n", "line 1 is not understood"),
        ("[1]", "entry 1 is not understood"),
        ("[", "is no JSON"),
        ("no topic,0,1", "line 1 is not understood"),
        ("t,0," + "1" * 200_000, "has no lines of topic, partition, offset"),
        ("t,0," + "1" * 5_000, "line 1 is not understood"),
        ("\x00\x01\x02", "line 1 is not understood"),
        ("[" * 100_000, "is no JSON"),
        ('[{"topic": "t", "partition": 0, "offset": 1.5}]', "entry 1 is not understood"),
        ('[{"topic": "t", "partition": true, "offset": 1}]', "entry 1 is not understood"),
        ('{"topic": "t", "partition": 0, "offset": 1}', "line 1 is not understood"),
    ],
)
def test_a_file_that_makes_no_sense_is_usage(
    shell: Shell, tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "offsets"
    file.write_text(text)
    assert sentence in shell.refused(2, "group", "import", shell.group, str(file))


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--to-earliest",), 1, "does not exist: see `folkmoot group list`"),
        (("--to-earliest", "--topic", "nothing"), 1, "topic nothing does not exist"),
        (("--to-earliest", "--topic", ""), 2, "topic name '' is not allowed"),
        (("--to-earliest", "--topic", ":0"), 2, "topic name '' is not allowed"),
        (("--to-offset", "1", "--topic", "TOPIC:0"), 1, "has offsets 0 to 0, not 1"),
        (("--shift-by", "1", "--topic", "TOPIC"), 1, "nothing is committed for"),
        (("--to-latest", "--topic", "TOPIC:2"), 1, "only 0 to 1"),
        (("--to-latest", "--topic", "TOPIC:x"), 2, "write TOPIC or TOPIC:0,2"),
        (("--to-datetime", "yesterday", "--topic", "TOPIC"), 2, "is no time"),
        (("--by-duration", "soon", "--topic", "TOPIC"), 2, "is no length of time"),
        (("--by-duration", "", "--topic", "TOPIC"), 2, "is no length of time"),
        (("--to-datetime", "", "--topic", "TOPIC"), 2, "is no time"),
        (("--from-file", "none", "--topic", "TOPIC"), 2, "leave --topic out"),
        (("--from-file", "no-such-file"), 2, "cannot be read: No such file or directory\n"),
        (("--to-latest", "--zookeeper", "127.0.0.1:1", "--timeout", "0.3"), 3, "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_reset_is_one_line_and_an_exit_code(
    shell: Shell, words: tuple[str, ...], code: int, sentence: str
) -> None:
    named = [word.replace("TOPIC", shell.topic) for word in words]
    assert sentence in shell.refused(code, "group", "reset", shell.group, *named)
