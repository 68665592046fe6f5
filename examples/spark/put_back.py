"""Dead letters back into the topics that they came from, each letter once.

    folkmoot spark run put_back --topic flights-dead --checkpoint put-back

For when whatever kept them from being read is mended: records go into their old partitions as they were,
behind those that are there now, and who still cannot read one writes another letter. What is no dead letter
is passed over. A letter that was written twice, since its batch ran again, comes back twice.
"""

import argparse
import os
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, filter, lit, timestamp_millis, try_element_at

ZOOKEEPER = os.environ.get("FOLKMOOT_ZOOKEEPER")
PREFIX = "dead-letter-"


def transform(letters: DataFrame) -> DataFrame:
    """Records as they were, with the places that their headers name."""

    def said(name: str) -> Column:
        """The last header of that name: a record that was put back may have come again."""
        found = filter("headers", lambda each: each["key"] == PREFIX + name)
        return try_element_at(found, lit(-1))["value"].cast("string")

    records = letters.select(
        *("key", "value", said("topic").alias("topic")),
        said("partition").cast("int").alias("partition"),
        timestamp_millis(said("timestamp").cast("long")).alias("timestamp"),
        filter("headers", lambda each: ~each["key"].startswith(PREFIX)).alias("headers"),
    )
    return records.where(col("topic").isNotNull())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zookeeper", default=ZOOKEEPER, required=not ZOOKEEPER)
    parser.add_argument("--topic", required=True, help="the topic of dead letters")
    parser.add_argument("--group", default="put-back")
    parser.add_argument("--checkpoint", required=True, help="a directory")
    parser.add_argument("--available-now", action="store_true", help="end with what is there now")
    args = parser.parse_args(arguments)

    spark = SparkSession.builder.appName("put_back").getOrCreate()
    options = {"zookeeper": args.zookeeper, "subscribe": args.topic, "group": args.group}
    letters = spark.readStream.format("folkmoot").options(**options, includeHeaders=True).load()
    writer = transform(letters).writeStream.format("folkmoot").option("zookeeper", args.zookeeper)
    writer = writer.option("checkpointLocation", args.checkpoint)
    if args.available_now:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
