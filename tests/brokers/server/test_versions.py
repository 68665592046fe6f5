"""Clients and brokers of two releases: each pair speaks the highest version that both know."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.console.running import processes
from folkmoot.console.running.processes import BrokerProcess
from folkmoot.protocol.messages import Api, HelloRequest
from tests.brokers.parts import Peer
from tests.brokers.server import one_release
from tests.brokers.server.one_release import PARTITIONS
from tests.next_release import SEGMENTS

NEXT = [sys.executable, "-m", "tests.next_release"]
A_RELEASE = "tests.brokers.server.one_release"


def run_next(*words: str) -> Any:
    """What a process of the next release prints."""
    command = [*NEXT, A_RELEASE, *words]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


@contextmanager
def serve_next(directory: Path) -> Iterator[str]:
    command = [*NEXT, A_RELEASE, "serve", str(directory)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        assert process.poll() is None


def highest_version(broker: BrokerProcess) -> int:
    with Peer(broker.address) as peer:
        response, _ = peer.call(Api.HELLO, HelloRequest("which versions?"))
    versions: set[int] = {api.highest for api in response.apis if api.api != Api.HELLO}
    return versions.pop()


@pytest.mark.parametrize("broker", ["this", "next"])
@pytest.mark.parametrize("client", ["this", "next"])
def test_a_client_and_a_broker_speak_the_highest_version_that_both_know(
    tmp_path: Path, client: str, broker: str
) -> None:
    serve = serve_next if broker == "next" else one_release.serve
    with serve(tmp_path) as address:
        answers = run_next("ask", address) if client == "next" else one_release.ask(address)
    [produced], [fetched, kept] = answers["produce"][:1], answers["fetch"][:2]
    assert [result[:5] for result in produced] == [["t", number, 0, "", 0] for number in (0, 1)]
    assert [result[:6] for result in fetched] == [["t", 1, 0, "", 0, 1]]
    assert not kept
    assert [topic[0] for topic in answers["metadata"][1]] == ["t"]
    assert len(answers["produce"]) == (2 if client == "next" else 1)
    segments = None if client == "this" else SEGMENTS if broker == "next" else -1
    assert answers["logs"] == [[0, segments], [1, segments]]
    if client == "next" and broker == "next":
        assert answers["some logs"] == [[1, SEGMENTS]]
    elif client == "next":
        assert answers["some logs"].startswith(
            f"UnsupportedVersion: broker {address}: version 0 of LOG_SIZES"
        )


def test_a_cluster_of_two_releases_replicates_and_serves_clients_of_both(
    tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(number: int) -> BrokerProcess:
        return stack.enter_context(BrokerProcess(number, tmp_path / f"{number}", chroot))

    with ExitStack() as stack:
        first = start(1)
        assert highest_version(first) == 0
        monkeypatch.setattr(processes, "FOLKMOOT", (*NEXT, "folkmoot.console.main"))
        assert highest_version(start(2)) == 1
        with Admin(zookeeper=chroot) as admin:
            admin.create_topic("t", PARTITIONS, replicas=2, options={"min_in_sync": 2})
        assert one_release.use(chroot, "t") == [1] * PARTITIONS + [2 * PARTITIONS]
        assert run_next("use", chroot, "t") == [2] * PARTITIONS + [2 * PARTITIONS]
        first.stop()
        assert highest_version(start(1)) == 1
        assert one_release.use(chroot, "t") == [3] * PARTITIONS + [2 * PARTITIONS]
