"""Each record with what a table says about its key, into another topic.

    folkmoot spark run enrichment --topic flights --into named --table names.csv --checkpoint named

The table is a CSV file with a header, a column `key` and one line for each key; every executor gets all of
it. Rows keep their order, so that what runs again is written once.
"""

import argparse
import os
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, col, struct, to_json, when

ZOOKEEPER = os.environ.get("FOLKMOOT_ZOOKEEPER")


def transform(records: DataFrame, table: DataFrame) -> DataFrame:
    """The value as JSON with `value` and, where the table has the key, `about`; tombstones stay such."""
    others = [each for each in table.columns if each != "key"]
    known = table.select(col("key").alias("known"), struct(*others).alias("about"))
    joined = records.join(broadcast(known), col("key").cast("string") == col("known"), "left")
    both = to_json(struct(col("value").cast("string").alias("value"), "about"))
    return joined.select("key", when(col("value").isNotNull(), both).alias("value"))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zookeeper", default=ZOOKEEPER, required=not ZOOKEEPER)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--into", required=True, help="the topic for what comes of it")
    parser.add_argument("--table", required=True, help="a CSV file with a column `key`")
    parser.add_argument("--group", default="enrichment")
    parser.add_argument("--checkpoint", required=True, help="a directory")
    parser.add_argument("--available-now", action="store_true", help="end with what is there now")
    args = parser.parse_args(arguments)

    spark = SparkSession.builder.appName("enrichment").getOrCreate()
    table = spark.read.csv(args.table, header=True)
    options = {"zookeeper": args.zookeeper, "subscribe": args.topic, "group": args.group}
    records = spark.readStream.format("folkmoot").options(**options).load()
    writer = transform(records, table).writeStream.format("folkmoot")
    writer = writer.options(zookeeper=args.zookeeper, topic=args.into)
    writer = writer.option("checkpointLocation", args.checkpoint)
    if args.available_now:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
