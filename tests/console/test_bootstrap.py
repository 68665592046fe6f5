"""`folkmoot produce` and `consume` with brokers in place of ZooKeeper."""

import json
from pathlib import Path
from uuid import UUID

import pytest

from folkmoot.console.main import main
from folkmoot.console.options import cluster as options
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.producers.producer import Producer
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.serializer import AvroSerializer
from folkmoot.schemas.values.wire import FRAME
from tests.console.cluster import Shell
from tests.console.test_produce import schema as schema


@pytest.fixture
def addresses(
    shell: Shell, shared_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Of brokers; the environment does not know the ZooKeeper any more."""
    shell.lines()  # until brokers know the new topic
    monkeypatch.delenv(options.ENVIRONMENT)
    return ",".join(broker.address for broker in shared_cluster.brokers)


def test_records_go_and_come_by_the_addresses_of_brokers(shell: Shell, addresses: str) -> None:
    shell.done("produce", shell.topic, "--bootstrap", addresses, stdin=b"one\ntwo\n")
    read = shell.lines("--bootstrap", addresses, "-o", "raw")
    assert read == ["one", "two"]


def test_the_environment_may_name_brokers_and_zookeeper_comes_first(
    shell: Shell, addresses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(options.BOOTSTRAP, addresses)
    shell.done("produce", shell.topic, stdin=b"one\n")
    assert shell.lines("-o", "raw") == ["one"]
    monkeypatch.setenv(options.ENVIRONMENT, shell.zookeeper)
    monkeypatch.setenv(options.BOOTSTRAP, "no address")
    assert shell.lines("-o", "raw") == ["one"]


def test_what_needs_zookeeper_says_so(shell: Shell, addresses: str, schema: str) -> None:
    by = ("--bootstrap", addresses)
    refused = shell.refused(2, "consume", shell.topic, "--group", shell.group, *by)
    assert "a group's members find each other in ZooKeeper: use --zookeeper" in refused
    refused = shell.refused(2, "produce", shell.topic, "--value-schema", schema, *by, stdin=b"{}\n")
    assert "schemas are in ZooKeeper" in refused


def test_brokers_tell_the_schemas_of_values(shell: Shell, addresses: str, schema: str) -> None:
    by = ("--bootstrap", addresses)
    shell.done("produce", shell.topic, *by, stdin=b"\0\x7f\0\0\1 looks like Avro\n")
    line = '{"carrier": "UA", "delay": 1}'
    words = ("--zookeeper", shell.zookeeper, "--value-schema", schema)
    shell.done("produce", shell.topic, *words, stdin=line)
    shown = shell.lines(*by, "--format", "%s\\n")
    assert line in shown
    assert any("looks like Avro" in each for each in shown)


def test_a_schema_that_a_record_s_header_says_is_known_and_gone_when_the_value_is_written_anew(
    shell: Shell, addresses: str, schema: str
) -> None:
    by = ("--bootstrap", addresses)
    with (
        SchemaRegistry(shell.zookeeper) as registry,
        Producer(zookeeper=shell.zookeeper) as producer,
    ):
        made = registry.register(f"{shell.topic}-value", Path(schema).read_text())
        value = {"carrier": "UA", "delay": 1}
        body = AvroSerializer(registry, id=made.id).serialize(shell.topic, value)[FRAME.size :]
        for mark in (FRAME.pack(0, made.id), b"\1" + UUID(made.guid).bytes):
            producer.send(shell.topic, body, headers=[("__value_schema_id", mark)], partition=0)
    here = ("--zookeeper", shell.zookeeper)
    for cluster in (by, here):
        shown = shell.lines(*cluster, "-o", "json")
        assert [json.loads(each)["value"] for each in shown] == [value, value]
        assert [json.loads(each)["schema_id"] for each in shown] == [made.id, made.guid]
        assert shell.lines(*cluster, "--format", "%s\n") == [json.dumps(value)] * 2
    lines, words = (
        "\n".join(shell.lines(*by, "-o", "json")),
        ("produce", shell.topic, "-i", "json", "--partition", "0"),
    )
    shell.done(*words, *here, stdin=lines)
    shell.done(*words, *here, "--value-schema", schema, stdin=lines)
    shown = shell.lines(*by, "-o", "json")
    assert [json.loads(each)["value"] for each in shown] == [value] * 6
    assert [len(json.loads(each)["headers"]) for each in shown] == [1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    "words", [["--bootstrap", "b:1", "--zookeeper", "z:1"], []], ids=["both", "neither"]
)
def test_one_of_both_is_to_be_named(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(options.ENVIRONMENT, raising=False)
    monkeypatch.delenv(options.BOOTSTRAP, raising=False)
    assert main(["consume", "t", *words]) == 2
    assert "--zookeeper" in capsys.readouterr().err


def test_what_is_no_address_is_named(shell: Shell, addresses: str) -> None:
    refused = shell.refused(2, "consume", shell.topic, "--bootstrap", "localhost")
    assert "'localhost' is no address of a broker; use HOST:PORT" in refused
