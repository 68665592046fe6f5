"""A topic and a group for each test of administration, on the shared cluster."""

from tests.consumers.conftest import bench, producer

__all__ = ["bench", "producer"]
