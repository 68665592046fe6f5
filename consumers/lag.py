"""The distance of a group, or a reader, from the end of a log. Pure."""


def lag(offset: int | None, start: int, end: int | None) -> int | None:
    """Return the number of offsets of the log from `offset` on; those before its `start` are gone.

    None if unknown: without an `end`, without an `offset` in a log with records, or if the log ends below
    `offset` (`is_beyond`). An unknown `start` is 0.
    """
    if end is None or is_beyond(offset, end):
        return None
    if offset is None:
        return None if end > start else 0
    return end - min(max(offset, start), end)


def is_beyond(offset: int | None, end: int | None) -> bool:
    """Return whether the log ends below a committed offset or a position: it has lost records, or is
    another one."""
    return offset is not None and end is not None and offset > end
