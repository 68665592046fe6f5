"""How much there is: `topic offsets`, `cluster status --sizes`, and the versions of brokers."""

import json
from typing import Any

from folkmoot import __version__
from tests.console.cluster import Shell


def rows(shell: Shell, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shell.done(*words, "-o", "json"))
    return found


def test_a_topics_offsets_and_sizes_are_shown(shell: Shell) -> None:
    shell.done("produce", shell.topic, "--partition", "1", stdin="a\nb\nc\n")
    shell.done("topic", "delete-records", shell.topic, "--before", "1=1", "--execute")
    first, second = rows(shell, "topic", "offsets", shell.topic)
    assert first == {"partition": 0, "earliest": 0, "latest": 0, "records": 0, "bytes": 0}
    assert second.pop("bytes") > 60
    assert second == {"partition": 1, "earliest": 1, "latest": 3, "records": 2}
    assert "topic nothing does not exist" in shell.refused(1, "topic", "offsets", "nothing")


def test_a_cluster_tells_its_versions_and_how_much_each_broker_has(shell: Shell) -> None:
    shell.done("produce", shell.topic, stdin="a\nb\nc\n")
    (status,) = rows(shell, "cluster", "status", "--sizes")
    assert status["versions"] == [__version__]
    assert sum(status["bytes"].values()) > 60
    assert {int(number) for number in status["bytes"]} == set(status["brokers"])
    assert {each["version"] for each in rows(shell, "broker", "list")} == {__version__}
