"""How large requests and the ends of sessions are, told before they are sent, against the real bytes."""

import struct

import pytest

from folkmoot.console.running.embedded import EmbeddedZooKeeper
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.kazoo_adapter import _encode, connect
from folkmoot.coordination.zookeeper.operations import (
    MAX_REQUEST_BYTES,
    Check,
    Children,
    Create,
    Delete,
    Get,
    Multi,
    Operation,
    Set,
    TooLarge,
    path_bytes,
    refusal,
    request_bytes,
)
from folkmoot.coordination.zookeeper.recipes import retry_on_connection_loss
from tests.memory_zookeeper import MemoryZooKeeper
from tests.waiting import eventually

HEADER = 8
CLOSE_SESSION = -11
WRITES = (
    Create("/a", b"12345"),
    Create("/a/b/ü", ephemeral=True),
    Set("/a", b"x" * 300, 7),
    Delete("/a/b"),
    Check("/a", 3),
)


@pytest.mark.parametrize("chroot", ["", "/cluster/é"])
@pytest.mark.parametrize(
    "operation", [*(w for w in WRITES if not isinstance(w, Check)), Multi(WRITES)]
)
def test_a_write_is_as_large_as_it_was_said_to_be(operation: Operation, chroot: str) -> None:
    sent = len(_encode(operation, chroot).serialize()) + HEADER
    assert request_bytes(operation, chroot) == sent


def test_what_is_exactly_as_large_as_may_be_is_not_refused() -> None:
    room = MAX_REQUEST_BYTES - request_bytes(Set("/a", b""))
    assert refusal(Set("/a", bytes(room))) is None
    assert isinstance(refusal(Set("/a", bytes(room + 1))), TooLarge)


def test_what_grows_on_its_way_is_said_to_be_no_smaller() -> None:
    for operation in (Get("/a"), Children("/a"), Create("/a-", sequence=True)):
        sent = len(_encode(operation, "").serialize()) + HEADER
        assert sent <= request_bytes(operation) <= sent + 10


def test_a_transaction_of_many_short_writes_is_refused_by_its_bytes_chroot_included() -> None:
    session = MemoryZooKeeper().connect()
    each = request_bytes(Delete("/00000")) + 1
    writes = tuple(Delete(f"/{number:05}") for number in range((MAX_REQUEST_BYTES - 17) // each))
    assert refusal(Multi(writes)) is None
    assert isinstance(refusal(Multi((*writes, Delete("/more")))), TooLarge)
    assert isinstance(refusal(Multi(writes), "/c"), TooLarge)
    with pytest.raises(TooLarge, match=f"{MAX_REQUEST_BYTES} at most"):
        execute(session, Multi((*writes, Delete("/more"))))


def test_the_end_of_a_session_is_as_large_in_the_server_s_log_as_it_was_said_to_be(
    private_zookeeper: EmbeddedZooKeeper,
) -> None:
    session = connect(f"{private_zookeeper.address}/chroot/é", 10.0, create=True)
    paths = [f"/{'x' * 100}-{number}" for number in range(1000)]
    creations = (retry_on_connection_loss(Create(path, ephemeral=True)) for path in paths)
    execute_all(session, creations)
    session.close()
    header = struct.pack(">q", session.session_id)

    def size() -> int | None:
        """The length of the record of the session's end, which is in front of it."""
        for log in private_zookeeper.data.rglob("log.*"):
            content = log.read_bytes()
            at = content.find(header)
            while at >= 0:
                (kind,) = struct.unpack_from(">i", content, at + 28)
                if kind == CLOSE_SESSION:
                    (length,) = struct.unpack_from(">i", content, at - 4)
                    return int(length)
                at = content.find(header, at + 1)
        return None

    assert eventually(size) == 48 + sum(path_bytes(path, session.chroot) for path in paths)
