"""How far a group, or a reader, is behind the end of a log. Pure."""


def lag(offset: int | None, start: int, end: int | None) -> int | None:
    """Offsets of the log from `offset` on: those before its `start` do not exist any more.

    None where it is not known: no leader tells the `end`, nothing is committed in a log with records, or
    the log ends below `offset` (`is_beyond`). A `start` that no leader tells is 0.
    """
    if end is None or is_beyond(offset, end):
        return None
    if offset is None:
        return None if end > start else 0
    return end - min(max(offset, start), end)


def is_beyond(offset: int | None, end: int | None) -> bool:
    """Whether the log ends below what was committed, or read: it has lost records, or is another one."""
    return offset is not None and end is not None and offset > end
