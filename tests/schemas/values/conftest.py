"""A registry in memory, whose requests are counted."""

import pytest

from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.schemas.sessions import CountingSession, memory_session


@pytest.fixture
def session() -> CountingSession:
    return CountingSession(memory_session())


@pytest.fixture
def registry(session: CountingSession) -> SchemaRegistry:
    return SchemaRegistry(session)
