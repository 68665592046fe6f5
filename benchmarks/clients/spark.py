"""A warm Spark session that reads a topic whenever it is told to: ours, and Spark's own source for Kafka.

`python -m benchmarks.clients.spark session '{"settings": {…}, "ours": true}'` says that it is ready, then
answers each line of JSON with what that read took. The CPU is that of all its processes: the JVM, its
workers in Python, and this one. Kafka's side runs on a PySpark of its own, without Folkmoot.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.clients.program import Parameters, main, tell
from benchmarks.measuring import cpu_seconds


def session(parameters: Parameters) -> None:
    spark = _started(parameters)
    spark.sparkContext.setLogLevel("ERROR")
    tell("ready")
    for line in sys.stdin:
        case = json.loads(line)
        with tempfile.TemporaryDirectory() as directory:
            cpu, begun = _cpu(), time.perf_counter()
            records = _read(spark, case, directory)
            seconds = time.perf_counter() - begun
            tell("done", records=records, seconds=seconds, cpu=_cpu() - cpu)
    spark.stop()


def _started(parameters: Parameters) -> Any:
    settings = {"spark.sql.python.filterPushdown.enabled": "true", **parameters["settings"]}
    if parameters["ours"]:
        from folkmoot.spark_apps.session import local_session

        return local_session("benchmark", settings=settings)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("benchmark").master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _read(spark: Any, case: Mapping[str, Any], directory: str) -> int:
    """Reads all that there is and throws it away; → how many records."""
    streams = case["how"] == "stream"
    reader = (spark.readStream if streams else spark.read).format(case["format"])
    for name, value in case["options"].items():
        reader = reader.option(name, value)
    if case["schema"]:
        reader = reader.schema(case["schema"])
    frame = reader.load()
    if not streams:
        frame.write.format("noop").mode("overwrite").save()
        return int(case["records"])
    writer = frame.writeStream.format("noop").option("checkpointLocation", directory)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def _cpu() -> float:
    """Of this process and all below it, those included that have ended."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = 0.0, [os.getpid()]
    while todo:
        pid = todo.pop()
        found += cpu_seconds(pid)
        todo += parents.get(pid, [])
    return found


if __name__ == "__main__":
    main({"session": session})
