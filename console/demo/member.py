"""A member of the group: a process that writes flights into the store until SIGTERM.

Records are committed to the group after they were written. A kill between the two loses nothing: the next
owner of the partition gets these records again. Spark writes its own log between the two, and a micro-batch
that is replayed changes no result.
"""

import os
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from folkmoot.console.demo import flights
from folkmoot.console.demo.results import COLUMNS, Results
from folkmoot.console.running.java import find_java, spark_java_home
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.deserializer import AvroDeserializer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARK: Final = "spark"


def consume(name: str, zookeeper: str, group: str, store: Path) -> None:
    """Run a plain member."""
    with (
        closing(Results(store)) as results,
        SchemaRegistry(zookeeper) as registry,
        Consumer(
            zookeeper=zookeeper,
            group=group,
            topics=[flights.TOPIC],
            client_id=name,
            value_deserializer=AvroDeserializer(registry),
        ) as consumer,
        consumer.leave_on_signals() as signalled,
    ):
        while not signalled:
            results.add(name, consumer.poll_arrow(0.2, 5_000, schema=flights.schema()))


def stream(name: str, zookeeper: str, group: str, store: Path) -> None:
    """Run the Spark app."""
    from folkmoot.spark_apps.session import local_session, stop_gracefully

    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())

    def write(batch: "DataFrame", number: int) -> None:
        with closing(Results(store)) as results:  # Spark has a thread of its own for this
            results.add(name, batch.toArrow())

    os.environ["JAVA_HOME"] = str(spark_java_home(find_java(), store.with_name("spark-java")))
    spark = local_session(name, short_lived=True)
    spark.sparkContext.setLogLevel("ERROR")
    source = spark.readStream.format("folkmoot").option("valueFormat", "avro")
    source = source.options(zookeeper=zookeeper, group=group, clientId=name)
    records = source.options(subscribe=flights.TOPIC, subject=flights.SUBJECT).load()
    writer = records.select(*COLUMNS).writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", f"{store}-spark")
    query = writer.trigger(processingTime="500 milliseconds").start()
    while not stopping.is_set():
        query.awaitTermination(1)  # raises what has ended it
    stop_gracefully(query, 20.0)
    spark.stop()


if __name__ == "__main__":
    run = stream if sys.argv[1] == SPARK else consume
    name, zookeeper, group, store = sys.argv[1:]
    run(name, zookeeper, group, Path(store))
