"""When chores are done, and that requests are answered in between."""

from folkmoot.brokers.server.scheduler import Now, Upkeep


def test_chores_are_done_one_at_a_time_when_they_are_due() -> None:
    done: list[str] = []

    def chore(name: str, pause: float) -> float:
        done.append(name)
        return pause

    upkeep = Upkeep([lambda _: chore("a", 10.0), lambda _: chore("b", 3.0)])
    for moment in (0.0, 0.0, 0.0, 2.9, 3.0, 6.5, 10.0, 10.0):
        upkeep.run(Now(moment, 0))
    assert done == ["a", "b", "b", "b", "b", "a"]
    deadline = upkeep.next_deadline()
    assert deadline is not None
    assert deadline > 10.0


def test_without_chores_nothing_is_due() -> None:
    upkeep = Upkeep()
    upkeep.run(Now(1.0, 0))
    assert upkeep.next_deadline() is None
