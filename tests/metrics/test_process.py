"""`folkmoot broker` as an operator runs it: its pages, and its log as JSON."""

import json
import logging
import re
import sys
from pathlib import Path

from folkmoot.console.options.monitoring import JsonFormatter
from folkmoot.console.running.processes import BrokerProcess
from folkmoot.protocol.errors import RequestTimeout, StorageError
from folkmoot.protocol.records import TopicPartition
from tests.console.cluster import Shell
from tests.metrics.scrape import Scraped, health
from tests.waiting import eventually


def test_a_broker_serves_its_pages_and_logs_json(tmp_path: Path, chroot: str) -> None:
    words = ["--metrics-port", "0", "--log-format", "json"]
    with BrokerProcess(1, tmp_path / "b", chroot, options=words) as broker:
        found = re.search(r"^metrics at http://(\S+)/metrics$", broker.output(), re.MULTILINE)
        assert found is not None
        assert health(found[1], "readyz")[0] == 200
        assert Scraped(found[1])("kafka_brokers") == 1
        broker.stop()
        lines = broker.output().splitlines()
    for line in lines:
        if not line.startswith(("metrics at", "broker 1 ready")):
            assert json.loads(line).keys() >= {"time", "level", "logger", "message"}


def test_consume_serves_pages_beside_the_records(shell: Shell) -> None:
    child = shell.start("consume", shell.topic, "--follow", "--metrics-port", "0")
    assert child.stderr is not None
    found = re.fullmatch(r"metrics at http://(\S+)/metrics\n", child.stderr.readline())
    assert found is not None
    said = {"ok": True, "consumers": {"folkmoot-consume": "alone"}}
    assert health(found[1], "readyz") == (200, said)
    labels = {"client_id": "folkmoot-consume"}
    eventually(lambda: Scraped(found[1])("folkmoot_consumer_assigned_partitions", **labels) == 2)


def test_a_line_of_json_has_what_was_said_the_extra_fields_and_the_stack() -> None:
    logger = logging.getLogger("folkmoot.test")
    try:
        raise ValueError("broken")
    except ValueError:
        record = logger.makeRecord(
            *("folkmoot.test", logging.WARNING, "file.py", 1, "%d of %s", (2, "x\ny")),
            sys.exc_info(),
            extra={"partition": 3, "path": Path("a")},
        )
    (line,) = JsonFormatter().format(record).splitlines()
    said = json.loads(line)
    assert "ValueError: broken" in said.pop("exception")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", said.pop("time"))
    assert said == {
        "level": "warning",
        "logger": "folkmoot.test",
        "message": "2 of x\ny",
        "event": "%d of %s",
        "error": "ValueError",
        "partition": 3,
        "path": "a",
    }


def test_a_line_of_json_has_fields_for_the_partition_and_the_error_that_it_names() -> None:
    one, two = TopicPartition("orders", 3), TopicPartition("bills", 7)
    arguments = (one, StorageError("no space"), two, RequestTimeout("late"))
    record = logging.LogRecord("x", logging.ERROR, "", 1, "%s: %s, %s: %s", arguments, None)
    said = json.loads(JsonFormatter().format(record))
    assert said["message"] == "orders-3: no space, bills-7: late"
    fields = {name: said.get(name) for name in ("event", "topic", "partition", "error")}
    assert fields == {
        "event": "%s: %s, %s: %s",
        "topic": "orders",
        "partition": 3,
        "error": "StorageError",
    }
    record = logging.LogRecord("x", logging.INFO, "", 1, "begun", None, None)
    assert json.loads(JsonFormatter().format(record)).keys() == {
        *("time", "level", "logger", "message")
    }
