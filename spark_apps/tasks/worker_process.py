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
_frozen_modules: dict[int, int] = {}


@contextmanager
def borrow(kind: tuple[Any, ...], create: Callable[[], T]) -> Iterator[T]:
    """Lend what `create` returns to this task alone, and keep it for the next one, unless this one fails.

    One of each kind is kept, of the kinds that were used last.
    """
    _freeze_imports()
    key = (os.getpid(), *kind)
    instance: Any = _idle.pop(key, None)
    if instance is None:
        instance = create()
    try:
        yield instance
    except GeneratorExit:  # Spark takes no more rows
        _return_instance(key, instance)
        raise
    except BaseException:
        instance.close()
        raise
    _return_instance(key, instance)


def _return_instance(key: tuple[Any, ...], instance: Any) -> None:
    if key in _idle:
        instance.close()
        return
    _idle[key] = instance
    for other in list(_idle)[:-CACHED]:
        forgotten = _idle.pop(other)
        if other[0] == os.getpid():  # a socket of the process that forked us is not ours to close
            forgotten.close()


def _freeze_imports() -> None:
    """Hide what was imported so far from the garbage collector, once for each worker process.

    PySpark collects garbage after each task, which looks at all of that, for longer than a small task takes.
    """
    imported = len(sys.modules)
    if _frozen_modules.get(os.getpid()) != imported:
        _frozen_modules[os.getpid()] = imported
        gc.freeze()
