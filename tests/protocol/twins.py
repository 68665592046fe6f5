"""The compiled cells and records beside their twins in plain Python, in one process."""

from collections.abc import Iterator
from contextlib import contextmanager

from folkmoot.protocol import columns


@contextmanager
def plain_columns() -> Iterator[None]:
    """Binary columns make their cells in plain Python inside, whichever way is in use."""
    in_use = columns._compiled
    columns._compiled = None  # type: ignore[misc]
    try:
        yield
    finally:
        columns._compiled = in_use  # type: ignore[misc]
