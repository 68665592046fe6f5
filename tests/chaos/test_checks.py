"""What judges a run of chaos must itself be able to say no."""

import struct
import zlib
from pathlib import Path

import msgspec
import pytest

from folkmoot.coordination import paths
from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.groups.ownership import OffsetState, Owner
from folkmoot.coordination.groups.plan import Plan, TopicBasis
from folkmoot.protocol.records import TopicPartition
from tests.chaos import checks
from tests.chaos.checks import Fault, Processed
from tests.chaos.history import History, Unowned
from tests.chaos.transactions import (
    BAD_VERSION,
    CHUNK_BYTES,
    Change,
    Transaction,
    Transactions,
    decoded,
)

PLACE = TopicPartition("t", 0)
OFFSET = "/c" + paths.offset("g", "t", 0)
PLAN = "/c" + paths.plan("g")
OWNER = "/c" + paths.owner("g", "t", 0)


class Told:
    """A history that is told what ZooKeeper did, a second apart."""

    def __init__(self) -> None:
        self.history = History("/c", "g", [PLACE])
        self._at = 0.0

    def does(self, *changes: Change, error: int = 0) -> None:
        self._at += 1.0
        self.history.take(Transaction(int(self._at), 7, self._at, changes, error))

    def claims(self, epoch: int, member: str, offset: int | None) -> None:
        name, nonce = f"{member}-x-0000000001", f"nonce of {member}"
        owner = msgspec.json.encode(Owner(name, nonce, epoch, 1.0))
        self.does(self._written(epoch, member, offset), Change("create", OWNER, owner, True))

    def commits(self, epoch: int, member: str, offset: int) -> None:
        self.does(self._written(epoch, member, offset))

    def plans(self, member: str) -> None:
        basis = {"t": TopicBasis("id", 1)}
        plan = plans.encode(Plan(1, (member,), basis, {"t": [member]}))
        self.does(Change("set", PLAN, plan))

    def frees(self) -> None:
        self.does(Change("delete", OWNER))

    def _written(self, epoch: int, member: str, offset: int | None) -> Change:
        state = OffsetState(offset, epoch, f"{member}-x-0000000001", f"nonce of {member}")
        return Change("set", OFFSET, msgspec.json.encode(state))


@pytest.fixture
def told() -> Told:
    """One member has committed 10, another has claimed after it and committed 20."""
    told = Told()
    told.claims(1, "a", None)
    told.commits(1, "a", 10)
    told.frees()
    told.claims(5, "b", 10)
    told.commits(5, "b", 20)
    return told


def test_an_orderly_history_has_no_breach(told: Told) -> None:
    assert not told.history.breaches
    assert [claim.offset for claim in told.history.lives[PLACE].claims] == [None, 10]
    assert told.history.unowned == [Unowned(PLACE, 3.0, 4.0)]
    assert told.history.owned_by("b") == {PLACE}


def test_a_first_claim_may_start_at_the_beginning_and_nowhere_else() -> None:
    first, other = Told(), Told()
    for told in (first, other):
        told.claims(1, "a", None)
        told.frees()
    first.claims(2, "b", 0)
    assert not first.history.breaches
    other.claims(2, "b", 7)
    assert "a claim moved None to 7" in other.history.breaches[0]


def test_a_zombies_commit_is_a_breach(told: Told) -> None:
    told.commits(1, "a", 30)
    assert "a zombie committed" in told.history.breaches[0]


def test_another_hand_in_the_same_epoch_is_a_breach(told: Told) -> None:
    told.commits(5, "c", 30)
    assert "a zombie committed" in told.history.breaches[0]


def test_a_commit_that_goes_back_is_a_breach(told: Told) -> None:
    told.commits(5, "b", 19)
    assert "went back from 20 to 19" in told.history.breaches[0]


def test_a_claim_that_moves_the_offset_is_a_breach(told: Told) -> None:
    told.frees()
    told.claims(6, "c", 15)
    assert "a claim moved 20 to 15" in told.history.breaches[0]


def test_an_owner_without_a_claim_is_a_breach(told: Told) -> None:
    told.frees()
    owner = msgspec.json.encode(Owner("c-x-0000000001", "n", 9, 1.0))
    told.does(Change("create", OWNER, owner, True))
    assert "without its claim" in told.history.breaches[0]


def test_refused_transactions_change_nothing_and_are_counted(told: Told) -> None:
    told.does(error=BAD_VERSION)
    assert told.history.refused == {7: 1}
    assert not told.history.breaches


def processed(*runs: Processed) -> dict[TopicPartition, list[Processed]]:
    return {PLACE: list(runs)}


@pytest.mark.parametrize(("number", "ends"), [(3, "closed"), (0, "expired")])
def test_a_session_that_was_closed_is_told_from_one_that_expired(
    told: Told, number: int, ends: str
) -> None:
    record = struct.pack(">qiqqi", -7, number, 1, 1000, -11)
    told.history.take(decoded(record))
    assert told.history.ended[2**64 - 7].ends == ends


def test_a_record_that_nobody_processed_is_lost() -> None:
    some = processed(Processed(1.0, 1, 0, 4, "a"), Processed(2.0, 1, 6, 9, "a"))
    assert not checks.lost(some, {PLACE: [0, 4, 6, 9]})
    assert "1 records lost, from offset 5" in checks.lost(some, {PLACE: list(range(10))})[0]
    assert checks.lost({}, {PLACE: [0]})


def test_what_is_committed_before_it_is_processed_is_found(told: Told) -> None:
    first, second = Processed(1.5, 1, 0, 9, "a"), Processed(4.5, 5, 10, 19, "b")
    assert not checks.committed_too_early(processed(first, second), told.history)
    late = Processed(2.5, 1, 0, 9, "a")
    assert (
        "processed up to 0" in checks.committed_too_early(processed(late, second), told.history)[0]
    )


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (Processed(6.0, 5, 12, 13, "b"), "read 12 instead of 10"),
        (Processed(6.0, 5, 9, 13, "b"), "read 9 instead of 10"),
        (Processed(6.0, 5, 10, 13, "a"), "that epoch is b-x"),
        (Processed(6.0, 4, 10, 13, "b"), "nobody ever claimed"),
    ],
)
def test_what_is_processed_outside_of_its_epoch_is_found(
    told: Told, run: Processed, said: str
) -> None:
    assert said in checks.out_of_epoch(processed(run), told.history)[0]


def test_an_epoch_goes_on_without_a_gap(told: Told) -> None:
    one, two = Processed(6.0, 5, 10, 13, "b"), Processed(7.0, 5, 14, 15, "b")
    assert not checks.out_of_epoch(processed(one, two), told.history)
    assert checks.out_of_epoch(processed(two, one), told.history)


def test_records_processed_again_are_counted() -> None:
    some = processed(Processed(1.0, 1, 0, 9, "a"), Processed(2.0, 2, 5, 12, "b"))
    assert checks.twice(some) == 5


@pytest.fixture
def gap(told: Told) -> Told:
    """The partition is without owner from 6.0 to 10.0; at 7.0 and 8.0 it was planned for c, then d."""
    told.frees()
    told.plans("c-x-0000000002")
    told.plans("d-x-0000000003")
    told.does()
    told.claims(9, "d", 20)
    assert told.history.unowned[-1] == Unowned(PLACE, 6.0, 10.0)
    return told


@pytest.mark.parametrize(
    ("fault", "wait"),
    [
        (Fault(5.0, 5.0, "d"), 4.0),
        (Fault(7.5, 7.5, "c"), 2.5),
        (Fault(9.5, 9.5, "d"), 0.5),
        (Fault(9.5, 9.5, "e"), 4.0),
        (Fault(5.0, 8.0), 2.0),
        (Fault(9.0, 12.0), 0.0),
        (Fault(11.0, 12.0), 4.0),
    ],
)
def test_a_partition_without_owner_is_timed_from_what_may_put_it_off(
    gap: Told, fault: Fault, wait: float
) -> None:
    assert checks.waits(gap.history, [fault])[-1] == wait
    assert checks.waits(gap.history, [])[-1] == 4.0


def test_a_transaction_counts_when_most_servers_have_it(tmp_path: Path) -> None:
    servers = [tmp_path / name for name in "abc"]
    logs = Transactions(servers)
    for server in servers:
        (server / "version-2").mkdir(parents=True)
    write(servers[0], 1, 2, 3)  # 3 was never answered: its leader died with it
    write(servers[1], 1, 2)
    write(servers[2], 1)
    assert not logs.read()
    assert [each.zxid for each in logs.read()] == [1, 2]
    write(servers[1], 1, 2, 4)
    write(servers[2], 1, 2, 4)
    assert not logs.read()
    assert [each.zxid for each in logs.read()] == [4]


def test_a_transaction_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    logs = Transactions([tmp_path])
    (tmp_path / "version-2").mkdir()
    write(tmp_path, 1, 2)
    whole = (tmp_path / "version-2" / "log.1").read_bytes()
    torn = bytearray(whole)
    torn[-90:-70] = bytes(20)  # in the middle of the last one
    (tmp_path / "version-2" / "log.1").write_bytes(torn)
    logs.read()
    assert [each.zxid for each in logs.read()] == [1]
    (tmp_path / "version-2" / "log.1").write_bytes(whole)
    logs.read()
    assert [each.zxid for each in logs.read()] == [2]


def test_transactions_are_read_however_large_they_are(tmp_path: Path) -> None:
    logs = Transactions([tmp_path])
    (tmp_path / "version-2").mkdir()
    write(tmp_path, 1, 2, 3, size=3 * CHUNK_BYTES)
    logs.read()
    assert [each.zxid for each in logs.read()] == [1, 2, 3]


def write(server: Path, *zxids: int, size: int = 2) -> None:
    """A server's log with as many deletions, and room for more, as ZooKeeper leaves it."""
    log = b"ZKLG" + struct.pack(">iq", 2, 0)
    for zxid in zxids:
        path = b"/".ljust(size, b"x")
        record = struct.pack(">qiqqi", 1, 1, zxid, zxid * 1000, 2)
        record += struct.pack(">i", len(path)) + path
        log += struct.pack(">qi", zlib.adler32(record), len(record)) + record + b"B"
    (server / "version-2" / "log.1").write_bytes(log + bytes(64))
