"""Records of each key counted by windows of time, late ones too, into another topic.

    folkmoot spark run windowed_counts --topic flights --into counts --checkpoint counts.checkpoint

A window is written once, when the watermark has passed its end: records that come later than `--late`
behind the newest are dropped. Counts are kept with the query: give it a group of its own.
"""

import argparse
import os
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, struct, to_json, window

ZOOKEEPER = os.environ.get("FOLKMOOT_ZOOKEEPER")


def transform(records: DataFrame, length: str = "1 minute", late: str = "5 minutes") -> DataFrame:
    """For each key and window a row with `start`, `end` and `count` as JSON."""
    keys = records.select(col("key").cast("string"), "timestamp").withWatermark("timestamp", late)
    counts = keys.groupBy("key", window("timestamp", length)).count()
    return counts.select(
        "key",
        to_json(struct(col("window.start"), col("window.end"), "count")).alias("value"),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zookeeper", default=ZOOKEEPER, required=not ZOOKEEPER)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--into", required=True, help="the topic for the counts")
    parser.add_argument("--group", default="windowed-counts")
    parser.add_argument("--length", default="1 minute", help="of a window")
    parser.add_argument("--late", default="5 minutes", help="records may be")
    parser.add_argument("--checkpoint", required=True, help="a directory")
    parser.add_argument("--available-now", action="store_true", help="end with what is there now")
    args = parser.parse_args(arguments)

    spark = SparkSession.builder.appName("windowed_counts").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    options = {"zookeeper": args.zookeeper, "subscribe": args.topic, "group": args.group}
    records = spark.readStream.format("folkmoot").options(**options).load()
    writer = transform(records, args.length, args.late).writeStream.format("folkmoot")
    writer = writer.options(zookeeper=args.zookeeper, topic=args.into)
    writer = writer.option("checkpointLocation", args.checkpoint)
    if args.available_now:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
