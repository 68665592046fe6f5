"""Fixtures for tests of the source."""

from collections.abc import Iterator

import pytest

from folkmoot.spark_apps import share
from tests.spark_apps.group import Scene
from tests.spark_apps.queries import queries, spark

__all__ = ["queries", "scene", "spark"]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(share, "ASSIGNMENT_WAIT", 0.05)
    monkeypatch.setattr(share, "COMMIT_WAIT", 0.05)
    monkeypatch.setattr(share, "SETTLE_WAIT", 0.3)
    made = Scene()
    yield made
    made.wakeup.close()
