"""The applications, started by `folkmoot spark run`: a writer, and readers of what it wrote.

A writer puts the numbers from 0 on into the topic, so many in each micro-batch, by the sink. A reader notes
each run of records that a batch had, before Spark commits the batch:

```
read TIME TOPIC PARTITION BATCH FIRST LAST     offsets of records, all from FIRST to LAST
```

A query that has failed starts again from its checkpoint; an application that cannot go on ends.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.chaos.notes import Notes

EVERY = "500 milliseconds"
PAUSE = 0.5


def runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of what follows on each other, in a sequence that ascends."""
    first = 0
    for place, offset in enumerate(offsets):
        if place + 1 == len(offsets) or offsets[place + 1] != offset + 1:
            yield offsets[first], offset
            first = place + 1


def reader(spark: SparkSession, given: argparse.Namespace) -> DataStreamWriter:
    notes = Notes(given.notes)
    options = {
        "zookeeper": given.zookeeper,
        "subscribe": given.topic,
        "group": given.group,
        "clientId": given.name,
        "maxOffsetsPerTrigger": "500",
        "revokeTimeout": "20",
        "maxProcessingTime": "20",
    }

    def note(batch: DataFrame, number: int) -> None:
        found: dict[int, list[int]] = {}
        for row in batch.select("partition", "offset").collect():
            found.setdefault(row.partition, []).append(row.offset)
        for partition, offsets in found.items():
            for first, last in runs(sorted(offsets)):
                notes.write("read", time.time(), given.topic, partition, number, first, last)

    frame = spark.readStream.format("folkmoot").options(**options).load()
    return frame.writeStream.foreachBatch(note)


def writer(spark: SparkSession, given: argparse.Namespace) -> DataStreamWriter:
    options: dict[str, Any] = {"rowsPerBatch": given.rows, "numPartitions": 2}
    numbers = spark.readStream.format("rate-micro-batch").options(**options).load()
    rows = numbers.select(
        col("value").cast("string").alias("value"),
        (col("value") % 997).cast("string").alias("key"),
    )
    out = rows.writeStream.format("folkmoot")
    return out.options(zookeeper=given.zookeeper, topic=given.topic, clientId=given.name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, help="of each batch; makes it a writer")
    for name in ("name", "zookeeper", "topic", "group", "checkpoint", "notes"):
        parser.add_argument(f"--{name}", required=name not in ("group", "notes"))
    given = parser.parse_args()
    spark = SparkSession.builder.appName(given.name).getOrCreate()
    query = (reader if given.rows is None else writer)(spark, given)
    query = query.option("checkpointLocation", given.checkpoint).trigger(processingTime=EVERY)
    while True:
        try:
            query.start().awaitTermination()
            sys.exit("the query ended by itself")
        except StreamingQueryException:
            traceback.print_exc()
            time.sleep(PAUSE)


if __name__ == "__main__":
    main()
