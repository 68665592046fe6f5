"""Writers that outlive the task that made them."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from folkmoot.spark_apps.reading import put_back, spare_collector
from folkmoot.spark_apps.sink.rounds import RoundWriter

_Key = tuple[int, str, bool, tuple[tuple[str, Any], ...]]
_idle: dict[_Key, RoundWriter] = {}
"""Of each process: a fork's are not its own."""


@contextmanager
def kept_writer(
    zookeeper: str, options: Mapping[str, Any], *, named: bool
) -> Iterator[RoundWriter]:
    """A writer of this task alone, kept for the next one if this one does not fail."""
    spare_collector()
    key = (os.getpid(), zookeeper, named, tuple(sorted(options.items())))
    writer = _idle.pop(key, None)
    if writer is None:
        writer = RoundWriter(zookeeper, named=named, **options)
    try:
        yield writer
    except BaseException:
        writer.close()
        raise
    put_back(_idle, key, writer)
