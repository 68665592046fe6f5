"""The Spark app among the members: Structured Streaming into the same store, by `foreachBatch`.

A micro-batch goes into the store in one transaction with its offsets, then Spark writes its own
log, then the source commits to the group; so a batch that is replayed changes nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from folkmoot.console.demo.flights import SUBJECT
from folkmoot.console.demo.member import say, stop_requests
from folkmoot.console.demo.store import Departure, Result, ResultStore, result
from folkmoot.protocol.records import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER: Final = "500 milliseconds"
MOST_RECORDS: Final = 20_000
COLUMNS: Final = ("_topic", "_partition", "_offset", *Departure.__struct_fields__)
"""Where a record stands, and what the sums need of it."""


class Sink:
    """Applies micro-batches to the store, in the driver. Spark calls it in a thread of its own."""

    def __init__(self, results: Path, member: str) -> None:
        self._results = results
        self._member = member

    def __call__(self, frame: "DataFrame", batch: int) -> None:
        table = frame.toArrow()
        rows = zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True)
        work: dict[TopicPartition, list[Result]] = {}
        for topic, partition, offset, *departure in rows:
            one = result(offset, Departure(*departure))
            work.setdefault(TopicPartition(topic, partition), []).append(one)
        for some in work.values():
            some.sort()  # a partition may have been read in several slices
        with ResultStore(self._results, self._member) as store:
            done = store.apply(work)
        say("batch", id=batch, applied=done.applied, repeated=done.repeated)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--zookeeper", "--group", "--topic", "--name"):
        parser.add_argument(name, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--hand-over", type=float, default=10.0)
    args = parser.parse_args(arguments)

    stopping = stop_requests()

    from folkmoot.spark_apps.session import local_session, stop_gracefully

    settings = {"spark.driver.memory": "512m", "spark.sql.streaming.metricsEnabled": "false"}
    spark = local_session(args.name, settings=settings, short_lived=True)
    spark.sparkContext.setLogLevel("ERROR")
    say("session", version=spark.version)
    try:
        query = _query(spark, args, Sink(args.results, args.name))
        while query.isActive and not stopping.wait(0.2):
            pass
        failure: Any = query.exception()
        if failure is not None:
            say("failed", reason=str(failure).splitlines()[0])
            return 1
        say("stopped", rested=stop_gracefully(query, 20.0))
    finally:
        spark.stop()
    return 0


def _query(spark: "SparkSession", args: argparse.Namespace, sink: Sink) -> "StreamingQuery":
    records = (
        spark.readStream.format("folkmoot")
        .option("zookeeper", args.zookeeper)
        .option("group", args.group)
        .option("subscribe", args.topic)
        .option("clientId", args.name)
        .option("revokeTimeout", str(args.hand_over))
        .option("maxOffsetsPerTrigger", str(MOST_RECORDS))
        .option("valueFormat", "avro")
        .option("subject", SUBJECT)
        .load()
    )
    return (
        records.select(*COLUMNS)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(args.checkpoint))
        .trigger(processingTime=TRIGGER)
        .start()
    )


if __name__ == "__main__":
    sys.exit(main())
