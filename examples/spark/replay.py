"""The records of a range of time once more, into another topic.

    folkmoot spark run replay --topic flights --into again --from 2026-01-01T00:00 --to 2026-01-02T00:00

No group takes part. A run that fails and is started again writes from the beginning.
"""

import argparse
import os
from collections.abc import Sequence
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

ZOOKEEPER = os.environ.get("FOLKMOOT_ZOOKEEPER")


def transform(records: DataFrame) -> DataFrame:
    """Records as they were, without the place that they had."""
    return records.select("key", "value", "headers", "timestamp")


def milliseconds(text: str) -> int:
    """A moment in ISO 8601, in UTC if it says nothing else, as Unix time."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zookeeper", default=ZOOKEEPER, required=not ZOOKEEPER)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--into", required=True, help="the topic that gets them")
    parser.add_argument("--from", dest="begin", type=milliseconds, required=True, metavar="TIME")
    parser.add_argument("--to", dest="end", type=milliseconds, required=True, metavar="TIME")
    args = parser.parse_args(arguments)

    spark = SparkSession.builder.appName("replay").getOrCreate()
    reader = spark.read.format("folkmoot").options(zookeeper=args.zookeeper, subscribe=args.topic)
    reader = reader.options(startingTimestamp=args.begin, endingTimestamp=args.end)
    # A partition may have no record so late: nothing of it is read.
    reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
    records = reader.option("includeHeaders", True).load()
    writer = transform(records).write.format("folkmoot").mode("append")
    writer.options(zookeeper=args.zookeeper, topic=args.into).save()


if __name__ == "__main__":
    main()
