"""Choose the appender: the compiled one if it was built and is wanted, else the plain one."""

from typing import TYPE_CHECKING

from folkmoot.producers.batch_builder import Appender, BatchBuilder
from folkmoot.producers.futures import AsyncDelivery, Delivery
from folkmoot.producers.partitioner import by_key
from folkmoot.protocol import speedups

__all__ = ["IMPLEMENTATION", "Appender", "AsyncDelivery", "BatchBuilder", "Delivery", "by_key"]

IMPLEMENTATION = "plain Python"
"""For people: `folkmoot --version` shows it."""

_compiled = speedups.compiled("folkmoot.producers._speedups")
if not TYPE_CHECKING and _compiled is not None:
    Appender, BatchBuilder, by_key = _compiled.Appender, _compiled.BatchBuilder, _compiled.by_key
    Delivery, AsyncDelivery = _compiled.Delivery, _compiled.AsyncDelivery
    IMPLEMENTATION = "compiled"
