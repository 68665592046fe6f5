"""The power goes at any moment: what was promised is there, and each log knows its producers."""

import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.producer_state import ProducerEntry, ProducerState
from folkmoot.coordination.topic_config import DAY, FOREVER
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import BatchHeader
from tests.brokers.batches import flush, states_of
from tests.brokers.compaction import COMPACT, Row, Upkept, keyed, records_in
from tests.brokers.power import NAMES, Power
from tests.seeds import new_seed

CONFIG = replace(
    COMPACT,
    cleanup_policy="compact,delete",
    segment_bytes=1024,
    retention=DAY,
    max_producers=50,
    producer_id_expiry=FOREVER,
)


class Life:
    """One log from power cut to power cut, and all that was ever written to it."""

    def __init__(self, data: Path, chance: random.Random) -> None:
        self.chance = chance
        data.mkdir(exist_ok=True)
        self.power = Power(data)
        self.data = data
        self.given_up = 0
        with self.power.watched():
            self.upkept = Upkept(data, CONFIG)

    @property
    def log(self) -> Log:
        return self.upkept.log


class Writer:
    """Producers that write to the log, and what of theirs it holds."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.rows: list[Row] = []
        self.headers: list[tuple[BatchHeader, int]] = []
        self._next: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])

    def lost_behind(self, end: int) -> None:
        """The log ends there now; producers go on as brokers tell them to."""
        del self.rows[end:]
        self.headers = [each for each in self.headers if each[1] < end]
        for producer, state in self._next.items():
            last = [h for h, _ in self.headers if h.producer_id == producer]
            state[:] = (
                [last[-1].producer_epoch, last[-1].last_sequence + 1] if last else [state[0], 0]
            )

    def write(self, upkept: Upkept) -> None:
        producer = self.chance.randrange(6)
        epoch, first = self._next[producer]
        if self.chance.random() < 0.05:
            epoch, first = epoch + 1, 0
        rows = [
            (
                self.chance.choice([b"a", b"b", b"c"]),
                self.chance.randbytes(self.chance.randrange(80)),
            )
            for _ in range(self.chance.randrange(1, 4))
        ]
        data = batch_header.reseal(keyed(*rows), producer, epoch, first)
        base = upkept.log.log_end
        upkept.append(data)
        self.headers.append((batch_header.check(data), base))
        self.rows += rows
        self._next[producer] = [epoch, first + len(rows)]

    def states(self) -> list[ProducerEntry]:
        """What the log tells of its producers, whatever of it was deleted or compacted since."""
        producers = ProducerState(CONFIG.max_producers)
        for header, base in self.headers:
            producers.update(header, base)
        return list(producers.entries)


def one_thing(life: Life, writer: Writer) -> None:
    """Something that happens to a log."""
    chance, upkept = life.chance, life.upkept
    log = upkept.log
    match chance.choices(range(7), [20, 4, 6, 1, 1, 1, 1])[0]:
        case 0:
            for _ in range(chance.randrange(1, 12)):
                writer.write(upkept)
        case 1:
            upkept.checkpoint()
        case 2:
            for _ in range(chance.randrange(1, 20)):
                upkept.step()
        case 3:
            upkept.later(chance.choice([60.0, DAY / 2, 2 * DAY]))
            upkept.expire()
        case 4:
            life.given_up = chance.randint(log.log_start, log.log_end)
            upkept.delete_before(life.given_up)
        case 5:
            flush(log)
        case 6:
            upkept.reopen(clean=chance.random() < 0.5)


def in_order(log: Log, durable: int, left: Path) -> None:
    """Appends have reached the disk in order: behind a segment that lacks some there is none.

    It lacks some, too, if a torn end is back that the last start had cut to write others there.
    """
    paths = sorted(log.directory.glob("*.log"))
    ends = [*(int(path.stem[:20]) for path in paths[1:]), log.log_end]
    lacking = False
    for path, end in zip(paths, ends, strict=False):
        copy = left / log.directory.name / path.name
        if lacking:
            copy.unlink(missing_ok=True)
        elif end > durable:
            lacking = not copy.exists() or not copy.read_bytes().startswith(path.read_bytes())


def check(life: Life, writer: Writer, durable: int, given_up: int) -> None:
    log = life.log
    assert log.log_end >= durable
    assert log.log_start >= given_up
    # A torn end that was cut may be back, if that was not flushed; there are no records in it.
    damage = [each for segment in log.sealed_segments for each in segment.damage]
    assert [each for each in damage if each.offset < each.next_offset] == []
    writer.lost_behind(log.log_end)
    assert states_of(log) == writer.states()
    found = {record.offset: (record.key, record.value) for record in records_in(log)}
    assert all(writer.rows[offset] == row for offset, row in found.items())
    last = {key: offset for offset, (key, _) in enumerate(writer.rows)}
    assert {offset for offset in last.values() if offset >= log.log_start} <= set(found)


@pytest.mark.parametrize("names", NAMES)
def test_after_power_cuts_the_log_has_what_was_flushed_and_knows_its_producers(
    tmp_path: Path, names: str
) -> None:
    seed = new_seed()
    chance = random.Random(seed)
    writer = Writer(chance)
    life = Life(tmp_path / "0", chance)
    for number in range(1, 16):
        with life.power.watched():
            for _ in range(chance.randrange(25)):
                one_thing(life, writer)
        durable = life.log.recovery_point_offset
        given_up = life.given_up
        after = tmp_path / str(number)
        life.power.cut(after, names, chance)
        in_order(life.log, durable, after)
        life.upkept.logs.abandon()
        life.power.close()
        now = life.upkept.now
        life = Life(after, chance)
        life.upkept.now = now
        check(life, writer, durable, given_up)
    life.upkept.logs.close()
    life.power.close()


def test_the_names_of_files_that_a_killed_broker_has_made_are_on_disk_once_its_log_is(
    tmp_path: Path,
) -> None:
    chance = random.Random(1)
    life, writer = Life(tmp_path / "0", chance), Writer(chance)
    with life.power.watched():
        for _ in range(30):
            writer.write(life.upkept)
        life.upkept.reopen(clean=False)
        assert len(life.log.segments) > 2
        flush(life.log)
        flushed = life.log.log_end
    life.power.cut(tmp_path / "1", "those flushed", chance)
    check(Life(tmp_path / "1", chance), writer, flushed, 0)


def test_a_torn_end_does_not_come_back_into_what_was_flushed_whoever_was_killed_after_cutting_it(
    tmp_path: Path,
) -> None:
    chance = random.Random(2)
    before, writer = Life(tmp_path / "0", chance), Writer(chance)
    writer.write(before.upkept)
    before.upkept.checkpoint()
    before.upkept.logs.abandon()
    (active,) = before.log.directory.glob("*.log")
    with active.open("ab") as file:
        file.write(b"torn")
    life = Life(tmp_path / "0", chance)
    with life.power.watched():
        life.upkept.reopen(clean=False)
        life.upkept.later(CONFIG.segment_age)
        writer.write(life.upkept)
        assert len(life.log.segments) == 2
        life.upkept.checkpoint()  # a start will not look at the first segment again
        flushed = life.log.log_end
    life.power.cut(tmp_path / "1", "those flushed", chance)
    check(Life(tmp_path / "1", chance), writer, flushed, 0)


def test_a_data_directory_is_on_disk_with_those_above_it(tmp_path: Path) -> None:
    power = Power(tmp_path)
    data = tmp_path / "above" / "data"
    with power.watched(), LogManager(data, 1, CONFIG):
        pass
    power.cut(tmp_path / "after", "those flushed", random.Random(4))
    assert (tmp_path / "after" / "above" / "data" / "broker.json").read_bytes()
