"""What the docs' page about Spark shows is true: its blocks run, in order, as printed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from folkmoot.console.options.cluster import ENVIRONMENT
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.protocol.records import TopicPartition
from tests.pages import Shell, blocks_of
from tests.spark_apps.sink.topics import contents
from tests.tree import ROOT

PAGE = ROOT / "docs" / "spark.md"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_page_can_be_followed(
    start_cluster: Callable[..., EmbeddedCluster],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, program = start_cluster(), ""
    with Shell(tmp_path, {ENVIRONMENT: cluster.zookeeper}) as shell:
        for block in blocks_of(PAGE):
            if block.title:
                (tmp_path / block.title).write_text(block.text)
            elif block.language == "console":
                for command, _ in block.commands():
                    if not command.startswith(("export ", "folkmoot spark ")):
                        code, printed = shell.run(command)
                        assert code == 0, printed + shell.errors.read_text()
            # Some are parts of a query; one needs jars that are not PySpark's.
            elif block.language == "python" and block.text[0] != "." and "avro(" not in block.text:
                program += block.text
    monkeypatch.setenv(ENVIRONMENT, cluster.zookeeper)
    here = '"checkpointLocation", "'  # of this test, not of the session's JVM
    exec(program.replace(here, f"{here}{tmp_path}/"), {})
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
    for topic, keys in (("flights-by-tail", {b"N14228", b"N24211"}), ("late-flights", {b"EWR"})):
        found = contents(cluster.zookeeper, [TopicPartition(topic, number) for number in range(3)])
        assert {record.key for record in found} == keys
