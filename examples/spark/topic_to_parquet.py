"""A topic into Parquet files by day, each record once.

    folkmoot spark run topic_to_parquet --topic flights --output flights.parquet

A micro-batch that runs again has the same records under the same batch id, and replaces the files that
it has written. Batch ids begin anew with a new checkpoint: so it lies with the files.
"""

import argparse
import os
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit, to_date

ZOOKEEPER = os.environ.get("FOLKMOOT_ZOOKEEPER")


def transform(records: DataFrame) -> DataFrame:
    """Key and value as text, and the day of the record's timestamp."""
    return records.select(
        col("key").cast("string"),
        col("value").cast("string"),
        "partition",
        "offset",
        "timestamp",
        to_date("timestamp").alias("day"),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zookeeper", default=ZOOKEEPER, required=not ZOOKEEPER)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="topic-to-parquet")
    parser.add_argument("--output", required=True, help="a directory for the files")
    parser.add_argument("--available-now", action="store_true", help="end with what is there now")
    args = parser.parse_args(arguments)

    spark = SparkSession.builder.appName("topic_to_parquet").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    options = {"zookeeper": args.zookeeper, "subscribe": args.topic, "group": args.group}
    records = spark.readStream.format("folkmoot").options(**options).load()

    def write(batch: DataFrame, number: int) -> None:
        files = transform(batch).withColumn("batch", lit(number)).write.mode("overwrite")
        files = files.option("partitionOverwriteMode", "dynamic").partitionBy("day", "batch")
        files.parquet(args.output)

    writer = records.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", f"{args.output}/_checkpoint")
    if args.available_now:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
