"""`folkmoot log`: what it says about good files and damaged ones."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.segment import SegmentReader
from folkmoot.console.main import main
from folkmoot.console.options import cluster as options
from folkmoot.coordination import topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe
from tests.brokers.batches import SMALL, a_batch, append
from tests.brokers.compaction import Upkept, keyed
from tests.brokers.hands import create


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with LogManager(tmp_path, 1, SMALL) as logs:
        log = create(logs, "flights", "first", 0)
        for number in range(12):
            append(log, a_batch(bytes([65 + number]) * 400, b"x"))
    return tmp_path


def table(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, object]]]:
    code = main(["log", *words, "-o", "json"])
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return code, found


def test_good_segments_are_verified_and_left_as_they_are(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    for path in (data, data / "first-0"):
        code, rows = table(["verify", str(path)], capsys)
        assert code == 0
        assert [row["state"] for row in rows] == ["ok"] * len(rows)
        assert len(rows) > 2
        assert {row["partition"] for row in rows} == {"flights-0"}
        assert sum(int(str(row["records"])) for row in rows) == 24
    assert before == {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}


def test_damage_is_named_by_its_offsets_and_is_exit_code_1(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data / "first-0" / f"{0:020}.log"
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[8:12], "big")
    content[length + 200] ^= 1
    path.write_bytes(content)
    code, rows = table(["verify", str(data)], capsys)
    assert code == 1
    (damaged,) = [row for row in rows if row["state"] == "DAMAGED"]
    assert (damaged["offset"], damaged["next"]) == (2, 4)
    assert (damaged["position"], damaged["end"]) == (length, 2 * length)
    code, rows = table(["dump", str(path)], capsys)
    assert code == 1
    assert [(row["first"], row["last"]) for row in rows][:3] == [(0, 1), (2, 3), (4, 5)]
    assert [row["codec"] for row in rows][:3] == ["none", "DAMAGED", "none"]


@pytest.mark.parametrize("action", ["verify", "dump"])
def test_segments_that_a_running_broker_deletes_meanwhile_are_left_out(
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    action: str,
) -> None:
    first, *others = sorted((data / "first-0").glob("*.log"))
    batches = SegmentReader.batches

    def read(reader: SegmentReader) -> object:
        for other in others[:-1]:
            other.unlink(missing_ok=True)
        return batches(reader)

    monkeypatch.setattr(SegmentReader, "batches", read)
    code, rows = table([action, str(data)], capsys)
    assert code == 0
    assert {Path(str(row["file"])).name for row in rows} == {first.name, others[-1].name}


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("action", ["verify", "dump"])
def test_a_batch_that_a_running_broker_writes_meanwhile_is_no_damage(
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    is_whole: bool,
) -> None:
    path = max((data / "first-0").glob("*.log"))
    content = bytearray(path.read_bytes())
    if not is_whole:
        content[-10] ^= 1
    path.write_bytes(content[:-100])
    batches = SegmentReader.batches

    def written(reader: SegmentReader, *place: int) -> Iterator[Any]:
        """Right behind the look at how large it is."""
        path.write_bytes(content)
        return batches(reader, *place)

    monkeypatch.setattr(SegmentReader, "batches", written)
    code, rows = table([action, str(path)], capsys)
    assert code == (0 if is_whole else 1)
    assert any("DAMAGED" in row.values() for row in rows) is not is_whole


def test_a_batch_that_takes_several_looks_to_be_written_is_no_damage(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = max((data / "first-0").glob("*.log"))
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    batches, left = SegmentReader.batches, [100, 50, 20, 0]

    def written(reader: SegmentReader, *place: int) -> Iterator[Any]:
        """More of it right behind each look at how large it is."""
        del left[: len(left) > 1]
        path.write_bytes(content[: len(content) - left[0]])
        return batches(reader, *place)

    monkeypatch.setattr(SegmentReader, "batches", written)
    code, rows = table(["verify", str(path)], capsys)
    assert (code, len(rows)) == (0, 1)


def test_a_segment_without_a_whole_batch_is_not_called_ok(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data / "first-0" / f"{0:020}.log"
    path.write_bytes(bytes(path.stat().st_size))
    code, rows = table(["verify", str(data)], capsys)
    assert code == 1
    assert [row["state"] for row in rows if row["file"] == str(path)] == ["DAMAGED"]


def test_records_are_dumped(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, rows = table(["dump", "--records", str(data)], capsys)
    assert code == 0
    assert [row["first"] for row in rows] == list(range(24))
    assert rows[1]["value"] == "x"
    assert str(rows[2]["value"]) == "B" * 400


def test_the_directory_of_dev_has_those_of_its_brokers(
    data: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path_factory.mktemp("dev")
    for number in (1, 2):
        shutil.copytree(data, whole / f"broker-{number}")
    code, rows = table(["verify", str(whole)], capsys)
    assert (code, {row["partition"] for row in rows}) == (0, {"flights-0"})
    assert sum(int(str(row["records"])) for row in rows) == 48
    _, rows = table(["dump", str(whole)], capsys)
    assert {str(row["file"]).partition("/")[0] for row in rows} == {"broker-1", "broker-2"}


def test_a_table_of_records_is_no_wider_than_it_has_to_be(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "dump", "--records", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 250
    assert f"{'B' * 59}…" in lines[3]


def test_a_path_without_segments_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "verify", str(tmp_path)]) == 2
    assert "has no segments" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["verify", "dump"])
def test_files_beside_the_segments_are_no_damaged_segments(
    data: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    beside = [path for path in (data / "first-0").iterdir() if path.suffix != ".log"]
    assert {path.suffix for path in beside} >= {".index", ".snapshot", ""}
    for path in beside:
        assert main(["log", action, str(path)]) == 2
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"folkmoot: {path} is no segment: give a .log file\n")


def test_the_gaps_of_a_compacted_log_are_no_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upkept = Upkept(tmp_path)
    for number in range(100):
        upkept.append(keyed((b"key", b"%d" % number * 30)))
    upkept.compact()
    upkept.logs.close()
    code, rows = table(["verify", str(tmp_path)], capsys)
    assert code == 0
    assert sum(int(str(row["records"])) for row in rows) < 50


def test_partitions_of_topics_that_do_not_exist_are_listed_and_left_as_they_are(
    tmp_path: Path,
    chroot: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(options.ENVIRONMENT, chroot)
    data = tmp_path / "data"
    store = connect(chroot, 5.0)
    there = execute(store, topics.create("flights", 1, [1]))
    store.close()
    with LogManager(data, 1, SMALL) as logs:
        create(logs, "flights", there.topic_id, 0)
        # A topic of the same name, which was deleted while the broker was away.
        append(create(logs, "flights", "earlier", 0), a_batch(b"a" * 400))
        create(logs, "gone", "other", 7)
    (data / "other-7" / "topic").unlink()
    before = sorted(data.rglob("*"))
    code, rows = table(["orphans", str(data)], capsys)
    assert code == 0
    assert [(row["topic"], row["partition"], row["topic_id"]) for row in rows] == [
        ("flights", 0, "earlier"),
        (None, 7, "other"),
    ]
    assert int(str(rows[0]["bytes"])) > 400
    assert rows[0]["directory"] == str(data / "earlier-0")
    assert sorted(data.rglob("*")) == before

    ask = topics.names

    def delete_and_ask() -> Recipe[list[str]]:
        shutil.rmtree(data / "other-7")  # as its broker does it, which runs
        return ask()

    monkeypatch.setattr(topics, "names", delete_and_ask)
    assert [row["topic_id"] for row in table(["orphans", str(data)], capsys)[1]] == ["earlier"]


def test_orphans_are_looked_for_in_data_directories_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "orphans", str(tmp_path), "--zookeeper", "127.0.0.1:1"]) == 2
    assert "is no data directory" in capsys.readouterr().err
