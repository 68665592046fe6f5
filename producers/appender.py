"""Choose the appender: the compiled one where it was built and is wanted, else the plain one."""

from typing import TYPE_CHECKING

from folkmoot.producers.batch_builder import Appender, BatchBuilder, Owner
from folkmoot.producers.futures import AsyncDelivery, BatchDelivery, Delivery
from folkmoot.producers.partitioner import by_key
from folkmoot.protocol.speedups import IS_WANTED

__all__ = [
    "IMPLEMENTATION",
    "Appender",
    "AsyncDelivery",
    "BatchBuilder",
    "BatchDelivery",
    "Delivery",
    "Owner",
    "by_key",
]

IMPLEMENTATION = "plain Python"
"""For people: what `folkmoot --version` says."""

if not TYPE_CHECKING and IS_WANTED:
    try:
        from folkmoot.producers._speedups import (
            Appender,
            AsyncDelivery,
            BatchBuilder,
            Delivery,
            by_key,
        )
    except ImportError:  # there was no compiler where this was installed
        pass
    else:
        IMPLEMENTATION = "compiled"
