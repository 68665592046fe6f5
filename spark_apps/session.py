"""For applications: the source made known to Spark, a local session, a graceful end of a query."""

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from folkmoot.spark_apps.drain import Drain
from folkmoot.spark_apps.home import use_unzipped_home
from folkmoot.spark_apps.source import FolkmootDataSource

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
QUIET_AND_LOCAL = {
    **LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
}


QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Java options that halve what starting costs, for sessions that live for minutes: see `local_session`."""


def register(spark: SparkSession) -> None:
    """Make `format("folkmoot")` known where Spark does not find it, as its workers have another Python."""
    spark.dataSource.register(FolkmootDataSource)


def local_session(
    name: str,
    *,
    cores: int = 2,
    short_lived: bool = False,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on this machine, its workers on this very Python. Java comes from JAVA_HOME or PATH.

    With `short_lived`, Java compiles quickly rather than well. `settings` are added to
    QUIET_AND_LOCAL, or replace what stands there.
    """
    use_unzipped_home()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(name).master(f"local[{cores}]")
    java = {"spark.driver.extraJavaOptions": QUICK_START} if short_lived else {}
    for key, value in {**QUIET_AND_LOCAL, **java, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def stop_gracefully(query: StreamingQuery, timeout: float = 60.0) -> bool:
    """Let the batch under way finish, commit it to the group, then stop the query.

    True if that was reached within `timeout` seconds: the group's offsets are then exactly what the
    sink has. Otherwise the query is stopped all the same, and its last batch is replayed at its next start,
    or read by the next owners of its partitions.

    The source starts no new batch after the request, which needs at least one finished batch.
    Without that a query comes to rest only when nothing new arrives.
    """
    _request_drain(query)
    idle_results: list[bool] = []

    def wait_until_idle() -> None:
        try:
            query.processAllAvailable()
            idle_results.append(True)
        except StreamingQueryException:
            idle_results.append(
                False
            )  # it has failed; `stop` and `exception()` are the caller's to see

    # The call has no timeout of its own, and ends when the query does.
    waiting = threading.Thread(target=wait_until_idle, name="folkmoot-rest", daemon=True)
    waiting.start()
    waiting.join(timeout)
    is_idle = idle_results == [True]
    query.stop()
    waiting.join(timeout)
    return is_idle


def _request_drain(query: StreamingQuery) -> None:
    """By Spark, on the driver's machine, which may be another one than the application's (Spark Connect)."""
    if runners := list(_runners(query)):
        spark = SparkSession.active()
        spark.dataSource.register(Drain)
        reader = spark.read.format(Drain.name()).option("runners", json.dumps(runners))
        reader.load().columns  # noqa: B018 Spark Connect loads nothing before it is asked for something


def _runners(query: StreamingQuery) -> Iterator[dict[str, Any]]:
    """The processes of the query's sources, as they report them."""
    reported_pids = set()
    for progress in reversed(query.recentProgress):
        for source in progress["sources"]:
            reported = source.get("latestOffset")
            found = json.loads(reported) if isinstance(reported, str) else reported
            runner = found.get("runner") if isinstance(found, dict) else None
            if runner is not None and runner["pid"] not in reported_pids:
                reported_pids.add(runner["pid"])
                yield runner
