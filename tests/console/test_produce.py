"""`folkmoot produce`: what becomes of lines, and what becomes of what is wrong with them."""

import json
import os
import signal
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from folkmoot.console.main import main
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import pip_command
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.serializer import AvroSerializer
from tests.console.cluster import Shell, without, without_waits
from tests.waiting import eventually

SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"]}],
}

PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


def record_of(fields: dict[str, Any]) -> dict[str, Any]:
    named = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "Typed", "fields": named}


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "flight.avsc"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


def as_json(shell: Shell) -> list[dict[str, object]]:
    return [json.loads(line) for line in shell.lines("-o", "json")]


def test_lines_of_standard_input_become_records(shell: Shell) -> None:
    code, out, err = shell.run("produce", shell.topic, stdin=b"one\ntwo\r\n\nlast")
    assert (code, out, err) == (0, "", f"produced 4 records to {shell.topic}\n")
    assert sorted(str(each["value"]) for each in as_json(shell)) == ["", "last", "one", "two"]


def test_lines_of_a_file_become_records_in_their_order(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f"{number}\n" for number in range(1_000)))
    shell.done("produce", shell.topic, "--file", str(path), "--partition", "1")
    shown = shell.done("consume", shell.topic, "-o", "raw").split()
    assert shown == [str(number) for number in range(1_000)]
    assert shell.lines("--partition", "0") == []


def test_what_stands_before_the_separator_is_the_key(shell: Shell) -> None:
    shell.done("produce", shell.topic, "--key-separator", "::", stdin="UA::a::b\n::empty\n")
    found = {each["key"]: each["value"] for each in as_json(shell)}
    assert found == {"UA": "a::b", "": "empty"}


def test_headers_stand_on_every_record(shell: Shell) -> None:
    options = ("--header", "from=test", "--header", "empty=", "--header", "from=again")
    shell.done("produce", shell.topic, *options, stdin="a\nb\n")
    expected = [["from", "test"], ["empty", ""], ["from", "again"]]
    assert [each["headers"] for each in as_json(shell)] == [expected, expected]


def test_a_header_and_a_separator_may_be_bytes_that_are_no_text(shell: Shell) -> None:
    given = os.fsdecode(b"\xff")  # as the command line has them
    options = ("--header", f"a={given}", "--key-separator", given, "--partition", "0")
    shell.done("produce", shell.topic, *options, stdin=b"k\xffv\n")
    (record,) = as_json(shell)
    assert (record["key"], record["value"], record["headers"]) == (
        "k",
        "v",
        [["a", {"base64": "/w=="}]],
    )


def test_json_lines_are_sent_by_their_schema(shell: Shell, schema: str) -> None:
    flights = [{"carrier": "UA", "delay": 3}, {"carrier": "DL", "delay": None}]
    lines = "".join(json.dumps(each) + "\n" for each in flights)
    shell.done("produce", shell.topic, "--value-schema", schema, "--partition", "0", stdin=lines)
    found = as_json(shell)
    assert [each["value"] for each in found] == flights
    assert all(each["schema_id"] for each in found)


def test_a_topic_of_one_subject_takes_lines_by_its_schema_and_no_others(
    shell: Shell, schema: str
) -> None:
    shell.done("topic", "config", shell.topic, f"value_schema={shell.topic}-value")
    line = '{"carrier": "UA", "delay": 3}\n'
    words = ("produce", shell.topic, "--partition", "0")
    eventually(lambda: shell.run(*words, stdin="plain\n")[0] == 1)  # once its leader knows
    assert "schema id 0" in shell.refused(1, *words, stdin=line)
    shell.done(*words, "--value-schema", schema, stdin=line)
    assert {"carrier": "UA", "delay": 3} in [each["value"] for each in as_json(shell)]


def test_what_consume_writes_as_json_makes_the_same_records_again(
    shell: Shell, schema: str
) -> None:
    texts = [None, b"", b"0xff", b"\xff", "grüße\n".encode(), b'{"base64": "/w=="}', b"\0\0\0\0\1"]
    with Producer(zookeeper=shell.zookeeper) as producer:
        for number, text in enumerate(texts):
            headers = [("h", text), ("h", b"again")]
            producer.send(shell.topic, text, text, 0, headers, 10**12 + number)
        producer.send(shell.topic, b"far", b"k", 0, timestamp=300_000_000_000_000)
    flights = '{"carrier": "UA", "delay": 3}\n{"carrier": "DL", "delay": null}\n'
    words = ("--value-schema", schema, "--partition", "0")
    shell.done("produce", shell.topic, *words, stdin=flights)

    written = shell.done("consume", shell.topic, "-o", "json")
    said = shell.run("produce", shell.topic, "-i", "json", "--partition", "1", stdin=written)
    assert said == (0, "", f"produced 10 records to {shell.topic}\n")
    first, second = (records_of(shell, partition) for partition in (0, 1))
    assert first == second
    assert len(first) == 10


def records_of(shell: Shell, partition: int) -> list[tuple[object, ...]]:
    """Their very bytes, not what the command shows of them."""
    found: list[tuple[object, ...]] = []
    with Consumer(zookeeper=shell.zookeeper, auto_offset_reset="earliest") as consumer:
        consumer.assign([(shell.topic, partition)])
        while len(found) < 10:
            for each in consumer.poll(1.0):
                found.append((each.key, each.value, tuple(each.headers), each.timestamp))
    return found


def test_keys_and_values_are_sent_by_a_registered_schema(shell: Shell, schema: str) -> None:
    said = shell.refused(1, "produce", shell.topic, "--value-schema", "latest", stdin="{}\n")
    assert f"{shell.topic}-value" in said
    shell.done("schema", "register", f"{shell.topic}-value", schema)
    made = json.loads(shell.done("schema", "register", f"{shell.topic}-key", schema, "-o", "json"))
    words = ("--key-schema", str(made["id"]), "--value-schema", "latest", "--key-separator", "|")
    line = '{"carrier": "UA", "delay": 1}|{"carrier": "DL", "delay": null}'
    shell.done("produce", shell.topic, *words, stdin=f"{line}\n")
    (found,) = map(json.loads, shell.lines("-o", "json"))
    assert found["schema_id"] == made["id"]
    assert isinstance(found["key"], str)  # its bytes
    (found,) = map(json.loads, shell.lines("-o", "json", "--key-schema", schema))
    assert found["key"] == {"carrier": "UA", "delay": 1}
    # The same line is the same record again.
    again = ("-i", "json", *words[:2])
    shell.done("produce", shell.topic, *again, stdin=json.dumps(found))
    both = shell.lines("--key-schema", schema, "--format", "%k|%s\\n")
    assert both == [line, line]
    said = shell.refused(1, "produce", shell.topic, "-i", "json", stdin=json.dumps(found))
    assert "or give --key-schema" in said


def test_schemas_of_another_context_are_written_and_read_by_its_ids(
    shell: Shell, schema: str
) -> None:
    context = ("--schema-context", ".other")
    line = '{"carrier": "UA", "delay": 1}'
    shell.done("produce", shell.topic, "--value-schema", schema, *context, stdin=f"{line}\n")
    assert f":.other:{shell.topic}-value" in shell.done("schema", "list", ":.other:")
    assert shell.lines("--format", "%s\n", *context) == [line]
    (found,) = map(json.loads, shell.lines("-o", "json", *context))
    again = ("-i", "json", "--value-schema", "latest", *context)
    shell.done("produce", shell.topic, *again, stdin=json.dumps(found))
    assert shell.lines("--format", "%s\n", *context) == [line, line]
    assert main(["produce", shell.topic, "--schema-context", "other"]) == 2


def test_a_key_schema_wants_keys(shell: Shell, schema: str) -> None:
    words = ("--key-schema", schema)
    assert "--key-separator" in shell.refused(2, "produce", shell.topic, *words, stdin="{}\n")


def test_a_value_in_json_can_be_written_anew_by_a_schema(shell: Shell, schema: str) -> None:
    lines = '{"key": "k", "value": {"carrier": "UA", "delay": 3}}\n{"key": "k", "value": null}\n'
    words = ("-i", "json", "--value-schema", schema, "--partition", "0", "--header", "a=b")
    shell.done("produce", shell.topic, *words, stdin=lines)
    first, second = as_json(shell)
    assert (first["value"], first["key"]) == ({"carrier": "UA", "delay": 3}, "k")
    assert (second["value"], second["headers"]) == (None, [["a", "b"]])
    changed = json.dumps({**first, "value": {"carrier": "DL", "delay": 1}}) + "\n"
    said = shell.refused(1, "produce", shell.topic, "-i", "json", stdin=changed)
    assert "value is not what encoded says: give --value-schema to write it anew" in said
    shell.done("produce", shell.topic, *words, stdin=changed)
    assert as_json(shell)[-1]["value"] == {"carrier": "DL", "delay": 1}


def test_what_a_schema_has_no_json_for_is_written_anew_as_consume_writes_it(
    shell: Shell, tmp_path: Path
) -> None:
    fields = {
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "local": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}],
        "day": {"type": "int", "logicalType": "date"},
        "times": {"type": "array", "items": {"type": "int", "logicalType": "time-millis"}},
        "prices": {"type": "map", "values": PRICE},
        "id": {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"},
        "raw": ["bytes", "null"],
        "text": "bytes",
        "share": "double",
        "either": ["null", "long", "string"],
    }
    value = {
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "local": datetime(2026, 1, 31, 12),  # noqa: DTZ001  # that is what "local" means
        "day": date(2026, 1, 31),
        "times": [time(12, 30)],
        "prices": {"a": Decimal("-1.50")},
        "id": UUID(int=7),
        "raw": b"\xff",
        "text": b"grue",
        "share": float("inf"),
        "either": "2026",
    }
    schema = record_of(fields)
    with (
        SchemaRegistry(shell.zookeeper) as registry,
        Producer(
            zookeeper=shell.zookeeper, value_serializer=AvroSerializer(registry, schema)
        ) as producer,
    ):
        producer.send(shell.topic, value, partition=0)
    written = shell.done("consume", shell.topic, "-o", "json")
    path = tmp_path / "typed.avsc"
    path.write_text(json.dumps(schema))
    words = ("-i", "json", "--value-schema", str(path), "--partition", "1")
    shell.done("produce", shell.topic, *words, stdin=written)
    first, second = (as_json(shell)[place]["encoded"] for place in (0, 1))
    assert first == second
    wrong = json.dumps({"value": {**json.loads(written)["value"], "day": "today"}})
    said = shell.refused(1, "produce", shell.topic, *words, stdin=wrong)
    assert "at .day: an int is wanted, not str 'today'" in said


def test_acks_and_compression_can_be_chosen(shell: Shell) -> None:
    for options in (("--acks", "0"), ("--compression", "none"), ("--set", "linger=100ms")):
        shell.done("produce", shell.topic, *options, stdin="x\n")
    eventually(lambda: len(shell.lines()) == 3)


# -- what is wrong --------------------------------------------------------------------------------


def test_a_line_without_a_key_is_named_and_the_lines_before_it_are_sent(shell: Shell) -> None:
    said = shell.refused(
        1, "produce", shell.topic, "--key-separator", ":", stdin="a:1\nb:2\nc\nd:4\n"
    )
    assert "line 3: there is no ':' after a key" in said
    assert "lines sent before it: 2, after it: none" in said
    assert sorted(str(each["key"]) for each in as_json(shell)) == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{carrier}", "is not JSON"),
        ('{"carrier": 7, "delay": 1}', "does not fit schema"),
        ('{"carrier": "UA"}', "does not fit schema"),
        ('{"carrier": "UA", "delay": 1, "extra": 2}', "does not fit schema"),
        ("[]", "does not fit schema"),
    ],
)
def test_a_line_that_does_not_fit_its_schema_is_named(
    shell: Shell, schema: str, line: str, sentence: str
) -> None:
    lines = f'{{"carrier": "UA", "delay": 3}}\n{line}\n'
    said = shell.refused(1, "produce", shell.topic, "--value-schema", schema, stdin=lines)
    assert "line 2: " in said
    assert sentence in said
    assert "lines sent before it: 1," in said
    assert len(as_json(shell)) == 1


def test_a_line_of_json_that_is_no_record_is_named_and_the_lines_before_it_are_sent(
    shell: Shell,
) -> None:
    for line, sentence in (
        ('{"vlaue": "v"}', "did you mean 'value'?"),
        ('{"value": "v", "timestamp": 1000000000000000000000}', "is out of range"),
    ):
        lines = f'{{"value": "good"}}\n{line}\n{{"value": "behind"}}\n'
        said = shell.refused(1, "produce", shell.topic, "-i", "json", stdin=lines)
        assert "line 2: " in said
        assert sentence in said
        assert "lines sent before it: 1, after it: none" in said
    assert len(shell.lines()) == 2


def test_one_record_is_not_called_records(shell: Shell) -> None:
    assert (
        shell.run("produce", shell.topic, stdin="a\n")[2] == f"produced 1 record to {shell.topic}\n"
    )


def test_a_line_that_is_too_large_is_named(shell: Shell) -> None:
    said = shell.refused(1, "produce", shell.topic, stdin=b"small\n" + b"x" * 40_000_000 + b"\n")
    assert "line 2: " in said
    assert len(as_json(shell)) == 1


@pytest.mark.parametrize(
    ("code", "words", "sentence"),
    [
        (2, ["--header", "novalue"], "'novalue' is not NAME=VALUE"),
        (2, ["--header", "\udcff=value"], "its name is not UTF-8"),
        (2, ["--key-separator", ""], "--key-separator is empty"),
        (2, ["--key-separator", ":", "-i", "json"], "leave out --key-separator"),
        (2, ["--compression", "best"], "'best'"),
        (2, ["--set", "linger"], "write NAME=VALUE"),
        (2, ["--set", "lingr=1"], "linger"),
        (2, ["--set", "acks=0"], "the command itself sets acks"),
        (2, ["--file", "no-such-file"], "no-such-file cannot be read: No such file"),
        (2, ["--file", "."], "cannot be read: Is a directory"),
        (2, ["--value-schema", "no-such-file"], "no-such-file cannot be read: No such file"),
        (1, ["--partition", "2"], "partition 2 does not exist: topic t-"),
        (1, ["--partition", "-1"], "partition -1 does not exist"),
    ],
)
def test_what_is_wrong_before_the_first_line_sends_nothing(
    shell: Shell, code: int, words: list[str], sentence: str
) -> None:
    assert sentence in shell.refused(code, "produce", shell.topic, *words, stdin="a\n")
    assert shell.lines() == []


def test_a_text_that_is_no_schema_sends_nothing(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "bad.avsc"
    for text in (b"{", b'{"type": "record"}', b"\xff\xfe"):
        path.write_bytes(text)
        code, _, err = shell.run("produce", shell.topic, "--value-schema", str(path), stdin="{}\n")
        assert code in (1, 2)
        assert err.startswith("folkmoot: ")
        assert err.count("\n") == 1
    assert shell.lines() == []


def test_an_unknown_topic_is_refused_and_registers_no_schema(shell: Shell, schema: str) -> None:
    said = shell.refused(1, "produce", "no-such-topic", "--value-schema", schema, stdin="{}\n")
    assert "topic no-such-topic does not exist" in said
    assert "folkmoot topic create" in said
    assert "no name" in shell.refused(2, "produce", "no name", stdin="a\n")


def test_without_fastavro_a_schema_names_the_pip_command(
    shell: Shell, schema: str, tmp_path: Path
) -> None:
    site = without(tmp_path / "site", "fastavro")
    child = shell.start("produce", shell.topic, "--value-schema", schema, site=site)
    _, err = child.communicate("{}\n", timeout=60)
    assert child.returncode == 1
    assert pip_command("avro") in err
    assert without_waits(err).count("\n") == 1


# -- its end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_delivers_what_was_typed_and_says_how_much(
    shell: Shell, number: signal.Signals
) -> None:
    child = shell.start("produce", shell.topic)
    assert child.stdin is not None
    child.stdin.write("one\ntwo\n")
    child.stdin.flush()
    eventually(lambda: len(shell.lines()) == 2, 30.0)
    child.send_signal(number)
    assert child.wait(30) == 130
    _, err = child.communicate(timeout=30)
    assert without_waits(err) == f"produced 2 records to {shell.topic}\n"
