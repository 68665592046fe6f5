"""What the exporter answers while brokers or ZooKeeper do not."""

from collections.abc import Callable
from threading import Event, Thread
from typing import cast

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.metrics.groups import GroupMetrics
from folkmoot.protocol.errors import ZooKeeperUnreachable

DEADLINE = 10.0


class SlowAdmin:
    """Its groups are described when `release` is set; `trouble` is raised by every call."""

    def __init__(self) -> None:
        self.release, self.begun = Event(), Event()
        self.trouble: ZooKeeperUnreachable | None = None

    def topics(self) -> list[str]:
        if self.trouble is not None:
            raise self.trouble
        return []

    def describe_groups(self, names: object) -> list[object]:
        self.begun.set()
        assert self.release.wait(DEADLINE)
        if self.trouble is not None:
            raise self.trouble
        return []


def scrape(metrics: GroupMetrics) -> Callable[[], object]:
    return lambda: [*metrics.collect()]


@pytest.mark.parametrize("trouble", [None, ZooKeeperUnreachable("ZooKeeper is away")])
def test_readiness_does_not_wait_for_a_scrape(trouble: ZooKeeperUnreachable | None) -> None:
    admin = SlowAdmin()
    metrics = GroupMetrics(cast(Admin, admin))
    admin.trouble = trouble
    first = metrics.ready()
    assert first.is_well is (trouble is None)
    thread = Thread(target=scrape(metrics), daemon=True)
    admin.trouble = None
    thread.start()
    assert admin.begun.wait(DEADLINE)
    assert metrics.ready() == first  # as it went the last time
    admin.release.set()
    thread.join(DEADLINE)
    assert metrics.ready().is_well


def test_a_scrape_that_fails_is_seen_by_readiness() -> None:
    admin = SlowAdmin()
    admin.release.set()
    metrics = GroupMetrics(cast(Admin, admin))
    admin.trouble = ZooKeeperUnreachable("ZooKeeper is away")
    with pytest.raises(ZooKeeperUnreachable):
        scrape(metrics)()
    assert not metrics.ready().is_well
