"""Fixtures for tests of the source."""

from collections.abc import Iterator

import pytest

from folkmoot.spark_apps.stream import query_member
from tests.spark_apps.queries import queries, spark
from tests.spark_apps.stream.group import Scene

__all__ = ["queries", "scene", "spark"]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(query_member, "ASSIGNMENT_WAIT", 0.05)
    monkeypatch.setattr(query_member, "COMMIT_WAIT", 0.05)
    monkeypatch.setattr(query_member, "SETTLE_WAIT", 0.3)
    made = Scene()
    yield made
    made.wakeup.close()
