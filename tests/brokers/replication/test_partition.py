"""A partition's roles, and the produces that wait for its high watermark."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from folkmoot.brokers.replication.partition import WaitingProduce
from folkmoot.brokers.replication.replica_state import NEXT_ROLES, Role
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol.errors import FolkmootError, RequestTimeout, StorageError
from tests.brokers.hands import Hands, create
from tests.brokers.parts import make_batch, make_handlers, make_logs


class Waiting:
    """A partition that this broker leads, whose records count once they are on disk."""

    def __init__(self, logs: LogManager) -> None:
        self.now = 0.0
        self.hands = Hands()
        self.handlers = make_handlers(logs, submit=self.hands.submit, clock=lambda: self.now)
        partition = self.handlers.partitions.find("id-1", 0)
        assert partition is not None
        self.partition = partition
        self.answers: list[tuple[int, FolkmootError | None]] = []

    def produce(self, count: int, deadline: float = 60.0) -> None:
        """Append records one by one, without a flush; the last one is waited for."""
        for _ in range(count):
            self.partition.log.append_as_leader([make_batch(b"a")], 1, 1)
        end = self.partition.log.log_end
        done = lambda error: self.answers.append((end, error))  # noqa: E731
        self.partition.wait(WaitingProduce(end, 10, deadline, done))

    def flush(self) -> None:
        self.partition.note_append(1, self.partition.log.log_end - 1)
        self.hands.work_all()


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    with make_logs(tmp_path / "data", LogConfig(durability="fsync")) as logs:
        create(logs, "t", "id-1", 0)
        yield Waiting(logs)


@pytest.mark.parametrize(("role", "following"), list(product(Role, Role)))
def test_only_the_roles_that_are_drawn_follow_a_role(
    waiting: Waiting, role: Role, following: Role
) -> None:
    partition = waiting.partition
    partition._role = role
    if following in NEXT_ROLES[role] or following is role:
        partition._enter(following)
        assert partition._role is following
    else:
        with pytest.raises(AssertionError):
            partition._enter(following)


def test_a_high_watermark_that_moves_answers_every_produce_that_it_covers(
    waiting: Waiting,
) -> None:
    waiting.produce(3)
    waiting.produce(2)
    waiting.flush()
    assert waiting.answers == [(3, None), (5, None)]
    waiting.produce(3)
    assert len(waiting.answers) == 2
    waiting.flush()
    assert waiting.answers[2:] == [(8, None)]


def test_a_log_that_takes_nothing_more_refuses_the_produces_that_wait(waiting: Waiting) -> None:
    waiting.produce(3)
    waiting.produce(2)
    waiting.partition.log.fail("a bad disk", readable=True)
    waiting.partition._finish_flush(None)
    assert [(end, type(error)) for end, error in waiting.answers] == [
        (3, StorageError),
        (5, StorageError),
    ]


def test_a_produce_that_has_waited_for_its_timeout_is_refused_and_the_others_wait_on(
    waiting: Waiting,
) -> None:
    shared = waiting.handlers.partitions.shared
    for deadline in (30.0, 10.0, 20.0):
        waiting.produce(1, deadline)
    refused = []
    while (due := shared.next_due) < 30.0:
        waiting.now = due
        shared.run_timers(due)
        refused.append((due, [end for end, _ in waiting.answers]))
    assert refused == [(10.0, [2]), (20.0, [2, 3])]
    assert {type(error) for _, error in waiting.answers} == {RequestTimeout}
    waiting.flush()
    assert waiting.answers[2:] == [(1, None)]
