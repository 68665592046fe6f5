"""A shell on the shared cluster, with a topic and a group of the test's own."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from folkmoot.console.running.processes import EmbeddedCluster
from tests.console.cluster import Shell


@pytest.fixture
def shell(
    shared_cluster: EmbeddedCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Shell]:
    shell = Shell(shared_cluster.zookeeper, uuid4().hex[:8], monkeypatch, capsys)
    shell.done("topic", "create", shell.topic, "--partitions", "2")
    yield shell
    shell.close()
