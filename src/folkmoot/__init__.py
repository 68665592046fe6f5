"""A replicated, partitioned, append-only log with consumer groups.

Public names are loaded when they are first used, so that `import folkmoot` (and with it
`folkmoot --help`) stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from folkmoot.consumers.admin.admin import Admin
    from folkmoot.consumers.client.async_consumer import AsyncConsumer
    from folkmoot.consumers.client.consumer import Consumer
    from folkmoot.consumers.records.batch_view import RecordBatchView
    from folkmoot.metrics.clients import ClientMetrics
    from folkmoot.producers.appender import BatchDelivery
    from folkmoot.producers.async_producer import AsyncProducer
    from folkmoot.producers.producer import Producer
    from folkmoot.protocol.records import Record, RecordMetadata, TopicPartition

__all__ = [
    "Admin",
    "AsyncConsumer",
    "AsyncProducer",
    "BatchDelivery",
    "ClientMetrics",
    "Consumer",
    "Producer",
    "Record",
    "RecordBatchView",
    "RecordMetadata",
    "TopicPartition",
]
__version__ = "0.1.0"

_HOMES = {
    "Admin": "folkmoot.consumers.admin.admin",
    "AsyncConsumer": "folkmoot.consumers.client.async_consumer",
    "AsyncProducer": "folkmoot.producers.async_producer",
    "BatchDelivery": "folkmoot.producers.appender",
    "ClientMetrics": "folkmoot.metrics.clients",
    "Consumer": "folkmoot.consumers.client.consumer",
    "Producer": "folkmoot.producers.producer",
    "Record": "folkmoot.protocol.records",
    "RecordBatchView": "folkmoot.consumers.records.batch_view",
    "RecordMetadata": "folkmoot.protocol.records",
    "TopicPartition": "folkmoot.protocol.records",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'folkmoot' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
