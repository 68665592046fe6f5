"""The checker of client histories sees each kind of fault, and none where there is none."""

from collections.abc import Callable

import pytest

from tests.client_history import ClientHistory, Seen


def a_history(offsets: int = 6) -> ClientHistory:
    """A producer has written two records at a time to a partition, and a consumer has read them."""
    history = ClientHistory()
    for offset in range(offsets):
        history.acknowledge("p", offset // 2, offset % 2, 0, offset, 100 + offset)
    history.poll("c", [Seen(0, 0, 100), Seen(0, 1, 101), Seen(0, 2, 102)])
    history.poll("c", [Seen(0, 3, 103)])
    return history


def final(offsets: int = 6) -> list[Seen]:
    return [Seen(0, offset, 100 + offset) for offset in range(offsets)]


def twice(history: ClientHistory) -> None:
    history.finally_read([*final(), Seen(0, 6, 101)])


def two_at_one_offset(history: ClientHistory) -> None:
    history.acknowledge("q", 0, 0, 0, 5, 999)
    history.finally_read(final())


def one_is_not_there(history: ClientHistory) -> None:
    history.acknowledge("q", 0, 0, 0, 6, 106)
    history.finally_read([*final(), Seen(0, 7, 107)])


def the_last_was_not_read(history: ClientHistory) -> None:
    history.acknowledge("q", 0, 0, 0, 6, 106)
    history.poll("d", final())


def one_that_was_seen_is_gone(history: ClientHistory) -> None:
    history.poll("d", [Seen(0, 6, 999)])
    history.finally_read(final())


def a_consumer_skips(history: ClientHistory) -> None:
    history.poll("c", [Seen(0, 5, 105)])
    history.finally_read(final())


def a_consumer_skips_within_a_poll(history: ClientHistory) -> None:
    history.poll("d", [Seen(0, 1, 101), Seen(0, 3, 103)])
    history.finally_read(final())


def a_consumer_goes_back(history: ClientHistory) -> None:
    history.poll("c", [Seen(0, 2, 102)])
    history.finally_read(final())


def a_consumer_goes_back_within_a_poll(history: ClientHistory) -> None:
    history.poll("d", [Seen(0, 3, 103), Seen(0, 2, 102)])
    history.finally_read(final())


def sends_change_places(history: ClientHistory) -> None:
    history.acknowledge("p", 9, 0, 0, 7, 107)
    history.acknowledge("p", 10, 0, 0, 6, 106)
    history.finally_read(final(8))


def a_batch_is_turned_round(history: ClientHistory) -> None:
    history.acknowledge("p", 9, 0, 0, 7, 107)
    history.acknowledge("p", 9, 1, 0, 6, 106)
    history.finally_read(final(8))


def something_lies_within_a_batch(history: ClientHistory) -> None:
    history.acknowledge("p", 9, 0, 0, 6, 106)
    history.acknowledge("p", 9, 1, 0, 8, 108)
    history.finally_read(final(9))


def a_high_watermark_falls(history: ClientHistory) -> None:
    history.finally_read(final())
    for offset in (3, 5, 4):
        history.high_watermark("broker 1", offset)


def a_leader_epoch_falls(history: ClientHistory) -> None:
    history.finally_read(final())
    for epoch in (3, 2):
        history.leader_epoch("partition 0", epoch)


@pytest.mark.parametrize(
    ("what", "kinds"),
    [
        (twice, {"duplicate"}),
        (two_at_one_offset, {"inconsistent-offsets"}),
        (one_is_not_there, {"lost-write"}),
        (the_last_was_not_read, {"unseen"}),
        (one_that_was_seen_is_gone, {"vanished"}),
        (a_consumer_skips, {"poll-skip"}),
        (a_consumer_skips_within_a_poll, {"int-poll-skip"}),
        (a_consumer_goes_back, {"nonmonotonic-poll"}),
        (a_consumer_goes_back_within_a_poll, {"int-nonmonotonic-poll"}),
        (sends_change_places, {"nonmonotonic-send"}),
        (a_batch_is_turned_round, {"int-nonmonotonic-send"}),
        (something_lies_within_a_batch, {"int-send-skip"}),
        (a_high_watermark_falls, {"hw-regress"}),
        (a_leader_epoch_falls, {"epoch-regress"}),
    ],
)
def test_a_fault_is_told_by_its_kind(
    what: Callable[[ClientHistory], None], kinds: set[str]
) -> None:
    history = a_history()
    what(history)
    assert set(history.faults()) == kinds


def test_a_history_in_order_has_no_faults() -> None:
    history = a_history()
    history.move("c")
    history.poll("c", [Seen(0, 0, 100)])
    history.high_watermark("broker 1", 3)
    history.high_watermark("broker 2", 2)
    history.finally_read(final())
    assert not history.faults()
    assert history.seen == 5


def test_where_a_log_has_holes_nothing_is_skipped() -> None:
    history = ClientHistory()
    history.poll("c", [Seen(0, 0, 100), Seen(0, 4, 104), Seen(1, 0, 200)])
    history.finally_read([Seen(0, 0, 100), Seen(0, 4, 104), Seen(1, 0, 200)])
    assert not history.faults()
