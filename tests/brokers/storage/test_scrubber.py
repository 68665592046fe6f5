"""What the scrubber finds that nobody reads, at its pace, and that a restart does not begin anew."""

import itertools
import os
from pathlib import Path

import pytest

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.storage import scrubber as scrubbing
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.notes import NOTES_FILE, load_notes
from folkmoot.brokers.storage.scrubber import Scrubber
from folkmoot.protocol.errors import CorruptBatch
from tests.brokers.batches import SMALL, a_batch, append, delete_before, read_all, values_of
from tests.brokers.hands import Hands, create, truncate
from tests.brokers.storage.test_log_manager import found

PERIOD = 1000.0
NOW = 1_700_000_000_000


def rot(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 4]))


class Scrubbed:
    """Logs with sealed segments of five batches, and a scrubber with a clock of its own."""

    def __init__(self, data: Path, partitions: int = 4) -> None:
        self.data = data
        self.now = Now(0.0, NOW)
        self.read: list[tuple[str, int]] = []
        self.open()
        for partition in range(partitions):
            log = create(self.logs, "flights", "first", partition)
            for number in range(30):
                append(log, a_batch(bytes([number]) * 300))

    def open(self) -> None:
        self.hands = Hands()
        self.logs = LogManager(self.data, 1, SMALL, submit=self.hands.submit)
        self.logs.start()
        self.scrubber = Scrubber(self.logs, self.hands.submit, PERIOD)
        self.flusher = Flusher(self.logs)

    def reopen(self) -> None:
        self.logs.abandon()
        self.open()

    def later(self, seconds: float) -> None:
        self.now = Now(self.now.monotonic + seconds, self.now.wall + round(seconds * 1000))

    def step(self) -> float:
        """→ the pause after it, which has passed."""
        pause = self.scrubber.task(self.now)
        segment = self.scrubber._segment
        if segment is not None and self.hands.jobs:
            self.read.append((segment.directory.name, segment.base_offset))
        self.hands.work_all()
        self.flusher.task(self.now)
        self.hands.work_all()
        self.later(pause)
        return pause

    def sealed(self) -> list[tuple[str, int]]:
        return sorted(
            (log.directory.name, segment.base_offset)
            for log in self.logs
            for segment in log.sealed_segments
        )


@pytest.fixture
def scrubbed(tmp_path: Path) -> Scrubbed:
    return Scrubbed(tmp_path / "data")


def test_rot_in_a_sealed_segment_is_found_and_then_not_served(
    scrubbed: Scrubbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "STEP_BYTES", 700)
    log, size = found(scrubbed.logs, 2), len(a_batch(bytes(300)))
    assert len(log.segments) > 3
    rot(log.directory / f"{5:020}.log", 2 * size + 200)
    # A reader's own checksum finds it at once; the broker serves it as it is, until the scrub.
    with pytest.raises(CorruptBatch):
        values_of(log.read(7, 1))
    while not log.find_sealed(5).damage:  # type: ignore[union-attr]
        scrubbed.step()
        assert scrubbed.now.monotonic < PERIOD
    with pytest.raises(CorruptBatch, match="go on at 8"):
        log.read(7, 1)
    assert [offset for offset, _ in values_of(log.read(5, 10_000))] == [5, 6]
    assert [offset for offset, _ in values_of(log.read(8, 10_000))] == [8, 9]
    others = [found(scrubbed.logs, partition) for partition in range(2)]
    assert [len(read_all(other)) for other in others] == [30, 30]
    scrubbed.logs.close()


def test_a_round_that_began_while_the_clock_was_ahead_is_followed_by_another_in_time(
    scrubbed: Scrubbed,
) -> None:
    right = scrubbed.now.wall
    scrubbed.now = Now(0.0, right + round(100 * PERIOD * 1000))
    scrubbed.step()
    scrubbed.now = Now(0.0, right)
    while scrubbed.now.monotonic < PERIOD * 2.1:
        scrubbed.step()
    assert scrubbed.read[: 2 * len(scrubbed.sealed())] == scrubbed.sealed() * 2
    scrubbed.logs.close()


def test_a_round_takes_its_period_and_reads_every_sealed_segment_once(scrubbed: Scrubbed) -> None:
    while scrubbed.now.monotonic < PERIOD * 0.999:
        scrubbed.step()
    assert scrubbed.read == scrubbed.sealed()
    assert scrubbed.now.monotonic == pytest.approx(PERIOD, rel=0.05)
    while scrubbed.now.monotonic < PERIOD * 2.1:
        scrubbed.step()
    assert scrubbed.read[: 2 * len(scrubbed.sealed())] == scrubbed.sealed() * 2
    scrubbed.logs.close()


def test_what_is_sealed_during_a_round_does_not_hold_it_up(tmp_path: Path) -> None:
    """A log that had little when the round began was read to its end in it, at the pace for that little."""
    scrubbed = Scrubbed(tmp_path / "data", partitions=1)
    young = found(scrubbed.logs, 0)
    delete_before(young, young.segments[-2].base_offset)
    while not scrubbed.read:
        scrubbed.step()
    for number in range(300):
        append(young, a_batch(bytes([number % 256]) * 300))
    sealed = scrubbed.sealed()
    while scrubbed.now.monotonic < PERIOD * 2.05:
        scrubbed.step()
    assert set(scrubbed.read) >= set(sealed)
    scrubbed.logs.close()


def test_rounds_begin_one_period_apart(scrubbed: Scrubbed) -> None:
    """Pauses at least as long as a late round's, up to the last step, made each round longer."""
    began: list[int] = []
    while scrubbed.now.monotonic < PERIOD * 3.5:
        scrubbed.step()
        noted = load_notes(scrubbed.data).scrub
        if noted is not None and noted.began not in began:
            began.append(noted.began)
    first, *others = began
    assert first - NOW < 100
    assert len(others) == 3
    for one, two in itertools.pairwise(began):
        assert PERIOD * 1000 <= two - one < PERIOD * 1000 + 100
    scrubbed.logs.close()


def test_a_restart_goes_on_where_the_last_life_was(scrubbed: Scrubbed) -> None:
    """Each start began a new round: a broker that is restarted daily never read its last segments."""
    lives = 0
    while scrubbed.now.monotonic < PERIOD * 0.999:
        scrubbed.step()
        if lives < 3 and scrubbed.now.monotonic > (lives + 1) * PERIOD / 4:
            lives += 1
            scrubbed.reopen()
    assert lives == 3
    assert sorted(set(scrubbed.read)) == scrubbed.sealed()
    # Read again is only what came since the place was last noted.
    assert len(scrubbed.read) <= len(scrubbed.sealed()) + 3 * 2
    scrubbed.logs.close()


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_a_place_that_cannot_be_read_begins_a_new_round(
    scrubbed: Scrubbed, content: bytes | None
) -> None:
    while scrubbed.now.monotonic < PERIOD / 2:
        scrubbed.step()
    path = scrubbed.data / NOTES_FILE
    assert load_notes(scrubbed.data).scrub is not None
    path.write_bytes(content) if content is not None else path.unlink()
    scrubbed.reopen()
    scrubbed.read.clear()
    while scrubbed.now.monotonic < PERIOD * 1.49:
        scrubbed.step()
    assert scrubbed.read == scrubbed.sealed()
    scrubbed.logs.close()


def test_a_round_that_is_late_leaves_the_disk_to_others_all_the_same(scrubbed: Scrubbed) -> None:
    while not scrubbed.read:
        scrubbed.step()
    scrubbed.reopen()
    scrubbed.later(100 * PERIOD)
    begun = scrubbed.now.monotonic
    while set(scrubbed.read) != set(scrubbed.sealed()):
        scrubbed.step()
    assert scrubbed.now.monotonic - begun > PERIOD / 20
    scrubbed.logs.close()


def test_segments_that_are_deleted_under_it_are_passed_over(scrubbed: Scrubbed) -> None:
    while len(scrubbed.read) < 3:
        scrubbed.step()
    scrubbed.scrubber.task(scrubbed.now)
    scrubbed.logs.delete_topic("first")
    scrubbed.logs.deletion_task(scrubbed.now)
    scrubbed.hands.work_all()
    for _ in range(5):
        scrubbed.step()
    assert len(scrubbed.read) == 3
    scrubbed.logs.close()


def test_nothing_is_read_on_the_event_loop_and_logs_are_listed_some_at_a_time(
    scrubbed: Scrubbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "LOGS_AT_ONCE", 2)
    with monkeypatch.context() as slow:
        for name in ("open", "pread", "fsync", "rename", "replace", "scandir"):
            slow.setattr(os, name, None)
        scrubbed.scrubber.task(scrubbed.now)
    scrubbed.hands.work_all()
    listed = 0
    with monkeypatch.context() as slow:
        for name in ("open", "pread", "fsync", "rename", "replace", "scandir"):
            slow.setattr(os, name, None)
        while not scrubbed.hands.jobs:
            scrubbed.scrubber.task(scrubbed.now)
            listed += 1
    assert listed == 3
    scrubbed.logs.close()


def test_a_segment_that_was_cut_and_has_grown_again_is_not_read_from_the_former_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "STEP_BYTES", 500)
    scrubbed = Scrubbed(tmp_path / "data", partitions=1)
    log = found(scrubbed.logs, 0)
    while not scrubbed.scrubber._position:
        scrubbed.step()
    log.uncommit(1, "an unclean election has lost")
    truncate(log, 1)
    for number in range(30):
        append(log, a_batch(bytes([number]) * 200))
    while scrubbed.now.monotonic < PERIOD * 2.1:
        scrubbed.step()
    assert not log.is_damaged
    assert set(scrubbed.read) >= set(scrubbed.sealed())
    scrubbed.logs.close()


@pytest.mark.parametrize("step_bytes", [1, 700])
def test_the_end_of_a_sealed_segment_that_is_missing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    monkeypatch.setattr(scrubbing, "STEP_BYTES", step_bytes)
    scrubbed = Scrubbed(tmp_path / "data", partitions=1)
    log = found(scrubbed.logs, 0)
    segment = log.find_sealed(5)
    assert segment is not None
    *_, (_, last) = segment.reader().headers(0)
    scrubbed.logs.close()
    os.truncate(segment.path, last)
    scrubbed.open()
    while scrubbed.now.monotonic < PERIOD * 1.1:
        scrubbed.step()
    segment = found(scrubbed.logs, 0).find_sealed(5)
    assert segment is not None
    assert [each.offset for each in segment.damage] == [9]
    scrubbed.logs.close()


def test_a_segment_that_compaction_has_emptied_holds_up_no_round(tmp_path: Path) -> None:
    hands = Hands()
    logs = LogManager(tmp_path / "data", 1, SMALL, submit=hands.submit)
    logs.start()
    log = create(logs, "t", "first", 0)
    for number in range(12):
        append(log, a_batch(bytes([number]) * 300))
    for segment in log.sealed_segments:
        segment.size = 0
    scrubber = Scrubber(logs, hands.submit, 1000.0)
    for _ in range(5):
        scrubber.task(Now(0.0, 1_700_000_000_000))
        hands.work_all()
    logs.abandon()
