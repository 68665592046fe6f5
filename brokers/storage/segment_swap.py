"""Putting a compacted segment in the place of those that it was made from.

```
<base>.log                           a segment as it was appended to
<base>-<end>-<generation>.log        compacted: it stands for all of a lower generation in [base, end)
<…>.log.cleaned                      being written
```

1. The new segment is written to `.cleaned` and flushed.
2. It is renamed to `.log`, its index is written beside it, and the directory is flushed.
3. The log takes it in the place of the old ones, in memory, on the event loop: it has a name of its
   own, so that nobody has read, or opens, anything else under it.
4. The old segments' files are removed.

All but 3 is done in the background. A death before 2 leaves `.cleaned`, which the next start removes.
A death from 2 on leaves both, and the next start removes the old ones. A power cut leaves one of these
states, too: the rename is on disk before the first of the old files goes. When an old segment was
deleted between 1 and 3, the new one is removed again; should that be interrupted, records that
retention had deleted are back until it deletes them again, and never those before the log's start;
what was deleted between it and the next segment is answered as damage, which says where to go on.
Each new segment has a generation above all that lie in the directory, so one that was left behind
gives way to any later one.
"""

import os
from pathlib import Path
from typing import Final

from folkmoot.brokers.storage.files.atomic_file import sync_directory
from folkmoot.brokers.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, SegmentName, write_index

CLEANED_SUFFIX: Final = ".cleaned"


def cleaned_path(directory: Path, name: SegmentName) -> Path:
    """Where a new segment is written."""
    return directory / f"{name.stem}{LOG_SUFFIX}{CLEANED_SUFFIX}"


def files_of(directory: Path, name: SegmentName) -> list[Path]:
    """The files of a new segment, in the order in which to remove them."""
    return [directory / f"{name.stem}{suffix}" for suffix in (INDEX_SUFFIX, LOG_SUFFIX)]


def next_generation(directory: Path) -> int:
    """A generation above those of all segments in a partition's directory. Raises OSError."""
    names = map(SegmentName.parse, os.listdir(directory))
    return 1 + max((name.generation for name in names if name is not None), default=0)


def commit(directory: Path, written: Path, name: SegmentName, interval_bytes: int) -> int:
    """Step 2, for what was written and flushed at `written`; → its size.

    Raises OSError, StorageError; then the new segment is gone again, since the log goes on without it.
    """
    _, log = files_of(directory, name)
    os.rename(written, log)
    try:
        size = log.stat().st_size
        write_index(directory, name, size, name.end, interval_bytes)
        sync_directory(directory)
    except BaseException:
        for path in files_of(directory, name):
            path.unlink(missing_ok=True)
        raise
    return size
