"""Objects that outlive a task in its worker process: connections and imports."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

CACHED: Final = 8

T = TypeVar("T")
_idle: dict[tuple[Any, ...], Any] = {}
_spared: dict[int, int] = {}


@contextmanager
def kept(kind: tuple[Any, ...], make: Callable[[], T]) -> Iterator[T]:
    """Lend what `make` returns to this task alone, and keep it for the next one, unless this one fails.

    One of each kind is kept, of the kinds that were used last.
    """
    _spare_collector()
    key = (os.getpid(), *kind)
    lent: Any = _idle.pop(key, None)
    if lent is None:
        lent = make()
    try:
        yield lent
    except GeneratorExit:  # Spark takes no more rows
        _put_back(key, lent)
        raise
    except BaseException:
        lent.close()
        raise
    _put_back(key, lent)


def _put_back(key: tuple[Any, ...], lent: Any) -> None:
    if key in _idle:
        lent.close()
        return
    _idle[key] = lent
    for other in list(_idle)[:-CACHED]:
        forgotten = _idle.pop(other)
        if other[0] == os.getpid():  # a socket of the process that forked us is not ours to close
            forgotten.close()


def _spare_collector() -> None:
    """Hide what was imported so far from the garbage collector, once for each worker process.

    PySpark collects garbage after each task, which looks at all of that, for longer than a small task takes.
    """
    imported = len(sys.modules)
    if _spared.get(os.getpid()) != imported:
        _spared[os.getpid()] = imported
        gc.freeze()
