"""A warm Spark session that does what it is told to: ours, and Spark's own source and sink for Kafka.

`python -m benchmarks.clients.spark session '{"settings": {…}, "ours": true}'` says that it is ready, then
answers each line of JSON, whose `do` is a verb of this module, with what that took. The CPU is that of all
its processes: the JVM, its workers in Python, and this one. Kafka's side runs on a PySpark of its own,
without Folkmoot.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from benchmarks.clients.pacing import DUE, Arrivals
from benchmarks.clients.program import Parameters, main, report_event
from benchmarks.measuring import cpu_below, cpu_seconds, forget_peaks, own_cpu, peak_resident

TRIGGER: Final = "200 milliseconds"
WAIT: Final = 60.0
LEAVE_WAIT: Final = 20.0
KINDS: Final = {
    "reader": "python_streaming_source_runner",
    "worker": "pyspark.daemon",
    "JVM": "org.apache.spark.deploy.SparkSubmit",
}
"""What the processes below this one are, by what their command lines have."""

Case = Mapping[str, Any]


def session(parameters: Parameters) -> None:
    spark = _create_session(parameters)
    spark.sparkContext.setLogLevel("ERROR")
    report_event("ready")
    for line in sys.stdin:
        case = json.loads(line)
        with tempfile.TemporaryDirectory() as directory:
            report_event("done", **_VERBS[case["do"]](spark, case, directory))
    spark.stop()


def _create_session(parameters: Parameters) -> Any:
    settings = parameters["settings"]
    if parameters["ours"]:
        from benchmarks.clients.spark_nothing import NothingDataSource
        from folkmoot.spark_apps.session import local_session

        spark = local_session("benchmark", settings=settings)
        spark.dataSource.register(NothingDataSource)
        return spark
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("benchmark").master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class _Clock:
    """What happens in it, in seconds and in CPU seconds of all processes and of the workers alone."""

    def __init__(self, cpu: Callable[[int], float] = cpu_seconds) -> None:
        self._read_cpu = cpu

    def __enter__(self) -> "_Clock":
        self._cpu = cpu_below(KINDS, self._read_cpu)
        self._started_at = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started_at
        now = cpu_below(KINDS, self._read_cpu)
        self.cpu = {kind: now[kind] - self._cpu[kind] for kind in now}

    def report(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "cpu": sum(self.cpu.values()), "cpu_of": self.cpu}


# -- reading and writing ------------------------------------------------------------------------------


def _read(spark: Any, case: Case, directory: str) -> dict[str, Any]:
    """Reads all that there is and throws it away."""
    forget_peaks(KINDS)
    with _Clock() as clock:
        if case["how"] == "stream":
            frame = _frame(spark.readStream, case)
            records = _run_to_end(frame.writeStream.format("noop"), directory)
        else:
            frame = _frame(spark.read, case)
            frame.write.format("noop").mode("overwrite").save()
            records = int(case["records"])
    return {"records": records, "resident": peak_resident(KINDS), **clock.report()}


def _frame(reader: Any, case: Case) -> Any:
    reader = reader.format(case["format"])
    for name, value in case["options"].items():
        reader = reader.option(name, value)
    if case["schema"]:
        reader = reader.schema(case["schema"])
    frame = reader.load()
    if case["avro"]:
        from pyspark.sql.avro.functions import from_avro
        from pyspark.sql.functions import expr

        # A registry's values begin with five bytes that say which schema they have.
        value = from_avro(expr("substring(value, 6)"), case["avro"]).alias("value")
        frame = frame.select(value, "key", "topic", "partition", "offset", "timestamp")
        frame = frame.select("value.*", "key", "topic", "partition", "offset", "timestamp")
    return frame


def _write(spark: Any, case: Case, directory: str) -> dict[str, Any]:
    """Writes the rows of Parquet files to a topic, and says how many records that has then."""
    forget_peaks(KINDS)
    rows = spark.readStream.schema(spark.read.parquet(case["rows"]).schema).parquet(case["rows"])
    if case["avro"]:
        rows = _with_values(rows, **case["avro"])
    writer = rows.writeStream.format(case["format"])
    for name, value in case["options"].items():
        writer = writer.option(name, value)
    with _Clock() as clock:
        _run_to_end(writer, directory)
    reader = spark.read.format(case["format"])
    for name, value in case["check"].items():
        reader = reader.option(name, value)
    resident = peak_resident(KINDS)
    return {"records": reader.load().count(), "resident": resident, **clock.report()}


def _with_values(rows: Any, schema: str, id: int) -> Any:
    """Columns as Avro behind the id of their schema, as registries' clients write it."""
    from pyspark.sql.avro.functions import to_avro
    from pyspark.sql.functions import concat, lit, struct

    fields = struct(*(name for name in rows.columns if name != "_key"))
    value = concat(lit(b"\0" + id.to_bytes(4, "big")), to_avro(fields, schema))
    return rows.select(rows["_key"].alias("key"), value.alias("value"))


def _run_to_end(writer: Any, directory: str) -> int:
    """Runs a query to the end of what there is now; → how many records it read."""
    writer = writer.option("checkpointLocation", directory)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


# -- a query that goes on -----------------------------------------------------------------------------


def _live(spark: Any, case: Case, directory: str) -> dict[str, Any]:
    """A query with a trigger of 200 ms: until its first row, then idle, then with records that come at a
    rate, which is told apart ("idle"), then the end.

    The topic has some records before; `count` are those that come, of the kind of `pacing.py`.
    """
    arrivals, first = Arrivals(case["count"]), threading.Event()

    def collect_batch(frame: Any, _: int) -> None:
        rows = frame.select("value").collect()
        now = time.monotonic_ns()
        first.set()
        for (value,) in rows:
            due = DUE.unpack_from(value)[0]
            if due >= 0:
                arrivals.add(now - due)

    frame = _frame(spark.readStream, case)
    writer = frame.writeStream.foreachBatch(collect_batch).option("checkpointLocation", directory)
    started_at = time.perf_counter()
    query = writer.trigger(processingTime=TRIGGER).start()
    _wait(first.is_set, query)
    report: dict[str, Any] = {"first_row": time.perf_counter() - started_at}
    time.sleep(1.0)  # what the first batch leaves behind is not idleness
    with _Clock(own_cpu) as clock:
        time.sleep(case["seconds"])
    report_event("idle", cpu_of=clock.cpu, seconds=clock.seconds)
    _wait(lambda: arrivals.is_complete, query)
    report |= {"lags": arrivals.percentiles(case["warm"]), "resident": peak_resident(KINDS)}
    if "group" in case["options"]:
        report["left"] = _stop_and_wait(
            query, case["options"]["zookeeper"], case["options"]["group"]
        )
    else:
        query.stop()
    return report


def _stop_and_wait(query: Any, zookeeper: str, group: str) -> float:
    """Ends the query; → the seconds until its group has no member any more."""
    from folkmoot import Admin

    with Admin(zookeeper=zookeeper) as admin:
        admin.groups([group])
        started_at = time.perf_counter()
        query.stop()
        while any(each.members for each in admin.groups([group])):
            if time.perf_counter() - started_at > LEAVE_WAIT:
                raise TimeoutError(f"a member of {group} stays")
        return time.perf_counter() - started_at


def _wait(condition: Any, query: Any) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        if not query.isActive or time.monotonic() > deadline:
            raise RuntimeError(f"the query got no further: {query.exception()}")
        time.sleep(0.005)


_VERBS: Final = {"read": _read, "write": _write, "live": _live}


if __name__ == "__main__":
    main({"session": session})
