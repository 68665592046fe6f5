"""`folkmoot dev` with real brokers: what is made in it is replicated, and outlives a broker and a restart."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.console.main import main
from folkmoot.console.running import processes
from folkmoot.console.running.children import StartFailed
from folkmoot.console.running.dev import _SupervisedProcess
from folkmoot.console.running.processes import FOLKMOOT, BrokerProcess
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers.producer import Producer
from tests.metrics.scrape import health
from tests.processes import children, told
from tests.waiting import eventually


@contextmanager
def dev(data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the address that it says. What it has started says where it is asked, and is ready."""
    command = [*FOLKMOOT, "dev", "--data", str(data), "--metrics-port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = list(iter(process.stdout.readline, "Ctrl-C stops all of it.\n"))
        pages = re.findall(r"^broker \d   \S+   http://(\S+)/metrics$", "".join(said), re.MULTILINE)
        registry = re.findall(r"^registry   http://(\S+)$", "".join(said), re.MULTILINE)
        assert [health(each, "readyz")[0] for each in [*pages, *registry]] == [200] * 4
        try:
            yield process, said[-1].strip().removeprefix("export FOLKMOOT_ZOOKEEPER=")
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.slow
def test_a_topic_of_dev_has_three_replicas_and_is_there_at_the_same_address_next_time(
    tmp_path: Path,
) -> None:
    with dev(tmp_path) as (process, first):
        with Admin(zookeeper=first) as admin:
            admin.create_topic("t")
        with Producer(zookeeper=first, delivery_timeout=60.0) as producer:
            producer.send("t", b"before").result(60.0)
            with Admin(zookeeper=first) as admin:
                killed = admin.describe_topics(["t"])["t"][0].leader
            for pid in children(process.pid):
                if f"\0--broker-id\0{killed}\0" in told(pid, "cmdline"):
                    os.kill(pid, signal.SIGKILL)
            producer.send("t", b"after").result(60.0)
        with Admin(zookeeper=first) as admin:
            wanted = {"broker-left", "broker-joined", "leader-elected", "in-sync"}
            eventually(lambda: {each.kind for each in admin.cluster_events()} >= wanted)
        logs = "".join(log.read_text() for log in tmp_path.glob("broker-*.log"))
        for line in ("leads t-0 in epoch", "in sync for t-0"):
            assert line in logs
        # If it was the controller, the next one sees that it is away.
        assert f"broker {killed} left" in logs or f"broker {killed} is away" in logs
        assert process.stderr is not None
        said = [process.stderr.readline(), process.stderr.readline()]
    assert f"broker {killed} was killed by SIGKILL" in said[0]
    assert said[1] == f"folkmoot: broker {killed} is back\n"
    with dev(tmp_path) as (_, second):
        assert second == first
        session = connect(second, 5.0)
        topic = execute(session, topics.read("t"))
        session.close()
        assert topic is not None
        assert (topic.replicas, topic.min_in_sync) == (3, 2)
        with Consumer(zookeeper=second, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            found: list[bytes | None] = []
            while len(found) < 2:
                found += [record.value for record in consumer.poll(1.0)]
    assert found == [b"before", b"after"]


def test_a_broker_that_was_stopped_in_order_is_not_told_of_as_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    process = SimpleNamespace(name="broker 2", is_running=False, exit_code=0, launch=lambda: None)
    _SupervisedProcess(cast(BrokerProcess, process)).check()
    assert capsys.readouterr().err == "folkmoot: broker 2 was stopped; it is started again\n"


def test_one_base_port_moves_zookeeper_registry_and_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[tuple[int, int, int]] = []

    def start(directory: Path, **options: Any) -> None:
        config = options["zookeeper"]
        ports.append((config.port, options["registry_port"], options["first_broker_port"]))
        raise StartFailed("it is not started in this test")

    monkeypatch.setattr(processes, "EmbeddedCluster", start)
    words = ["dev", "--data", str(tmp_path), "--port", "3000"]
    assert main(words) == 1
    assert main([*words, "--broker-port", "4000", "--registry-port", "5000"]) == 1
    assert main(["dev", "--data", str(tmp_path)]) == 1
    assert ports == [(3000, 3009, 3010), (3000, 5000, 4000), (0, 0, 0)]
    assert main(["dev", "--data", str(tmp_path), "--port", "65530"]) == 2
