"""`folkmoot dev` with real brokers: what is made in it is replicated, and outlives a broker and a restart."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from folkmoot.console.dev import _Watched
from folkmoot.console.processes import FOLKMOOT, BrokerProcess
from folkmoot.consumers.admin.admin import Admin
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers.producer import Producer
from tests.metrics.scrape import health
from tests.processes import children, told


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
        yield process, said[-1].strip().removeprefix("export FOLKMOOT_ZOOKEEPER=")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_topic_of_dev_has_three_replicas_and_is_there_at_the_same_address_next_time(
    tmp_path: Path,
) -> None:
    with dev(tmp_path) as (process, first):
        with Admin(zookeeper=first) as admin:
            admin.create_topic("t")
        with Producer(zookeeper=first, delivery_timeout=60.0) as producer:
            producer.send("t", b"before").result(60.0)
            for pid in children(process.pid):
                if "\0--broker-id\0001\0" in told(pid, "cmdline"):
                    os.kill(pid, signal.SIGKILL)
            producer.send("t", b"after").result(60.0)
        assert process.stderr is not None
        said = [process.stderr.readline(), process.stderr.readline()]
    assert "broker 1 was killed by SIGKILL" in said[0]
    assert said[1] == "folkmoot: broker 1 is back\n"
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
    child = SimpleNamespace(name="broker 2", is_running=False, exit_code=0)
    process = SimpleNamespace(child=child, launch=lambda: None)
    _Watched(cast(BrokerProcess, process)).look()
    assert capsys.readouterr().err == "folkmoot: broker 2 was stopped; it is started again\n"
