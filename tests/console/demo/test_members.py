"""Plain members on real brokers: one is killed with work in its hands, and every flight counts once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from folkmoot.console.demo import checks, direct, flights, members
from folkmoot.console.demo.cluster import Onlooker
from folkmoot.console.demo.passes import Pass, Where
from folkmoot.console.demo.producer import Feed
from folkmoot.console.demo.report import Screen
from folkmoot.console.running.children import StartFailed
from folkmoot.console.running.processes import EmbeddedCluster
from tests.waiting import eventually

TOTAL = 6_000


def test_a_killed_member_costs_nothing_but_work(
    start_cluster: Callable[..., EmbeddedCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Where(start_cluster(brokers=2).zookeeper, tmp_path)
    archive = flights.find_archive()
    with (
        Onlooker(where.zookeeper) as onlooker,
        Pass(where, "flights", "delays", onlooker, Screen()) as this,
        Feed(where.zookeeper, "flights", flights.read(archive, TOTAL)) as feed,
    ):
        with monkeypatch.context() as patch:
            # What the victim has in its hands stays there.
            patch.setattr(members, "COMMIT_EVERY", 600.0)
            this.members.start_plain("plain-1")
        this.members.start_plain("plain-2")
        this.wait(this.all_own, 60.0, "not every member got partitions")
        victim = this.members.running["plain-1"]
        assert feed.send(1_000)
        this.wait(lambda: victim.has_uncommitted, 60.0, "plain-1 has got nothing")
        this.members.kill("plain-1")
        while feed.send(1_000):
            pass
        feed.finish()
        this.drain()
        this.members.stop()
        consumed = this.consumed(TOTAL, direct.by_carrier(archive, TOTAL))
    assert checks.of_results(consumed) == []
    assert consumed.repeated > 0
    assert consumed.members["plain-1"].applied > 0


def test_a_member_that_cannot_start_is_told_with_its_last_word(tmp_path: Path) -> None:
    started = members.Members(tmp_path, "127.0.0.1:1", "Ünrein", "flights")
    started.start_plain("plain-1")

    def refused() -> str:
        try:
            started.look()
        except StartFailed as error:
            return str(error)
        return ""

    assert "InvalidName" in eventually(refused, 30.0)


def test_a_member_that_is_asked_to_stop_more_than_once_stops_once(
    start_cluster: Callable[..., EmbeddedCluster], tmp_path: Path
) -> None:
    where = Where(start_cluster(brokers=1).zookeeper, tmp_path)
    with (
        Onlooker(where.zookeeper) as onlooker,
        Pass(where, "flights", "delays", onlooker, Screen()) as this,
    ):
        this.members.start_plain("plain-1")
        this.wait(this.all_own, 60.0, "not every member got partitions")
        child = this.members.running["plain-1"].child
        while child.is_running:
            child.terminate()
        assert child.exit_code == 0
