"""Putting a compacted segment in the place of those that it was made from.

```
<base>.log                           a segment as it was appended to
<base>-<end>-<generation>.log        compacted: it stands for all of a lower generation in [base, end)
<…>.log.cleaned                      being written
```

1. The new segment is written to `.cleaned`, its index beside it, and both are flushed.
2. An operation of the log's queue renames it to `.log` and flushes the directory. No cut comes between
   the look at the old ones and the rename.
3. The same operation has the log take it in the place of the old ones, in memory. Its name is new, so
   that no reader has another file open under it.
4. The same operation removes the old segments' files: a cut of the new one would make them count again.

A death before 2 leaves `.cleaned` and an index, which the next start removes.
A death from 2 on leaves both, and the next start removes the old ones. A power cut leaves one of these
states, too: the rename is on disk before the first of the old files goes. If an old segment was
deleted between 1 and 3, the new one is removed again. A death before that brings deleted records back
until retention deletes them again, but none before the log's start; a gap to the next segment is
answered as damage, which names the next offset.
Each new segment has a generation above all in the directory, so a later one replaces one that was left
behind.
"""

import os
from pathlib import Path
from typing import Final

from folkmoot.brokers.storage.files.atomic_file import sync_directory, sync_file
from folkmoot.brokers.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, SegmentName, SegmentReader
from folkmoot.brokers.storage.segment_index import SegmentIndex

CLEANED_SUFFIX: Final = ".cleaned"


class _Written(SegmentReader):
    """A new segment before step 2."""

    @property
    def path(self) -> Path:
        return cleaned_path(self.directory, self.name)


def cleaned_path(directory: Path, name: SegmentName) -> Path:
    """Return the path at which a new segment is written, whose end is not known yet."""
    return directory / f"{name._replace(end=0).stem}{LOG_SUFFIX}{CLEANED_SUFFIX}"


def files_of(directory: Path, name: SegmentName) -> list[Path]:
    """Return the files of a new segment before and after step 2, in the order in which to remove them."""
    index, log = (directory / f"{name.stem}{suffix}" for suffix in (INDEX_SUFFIX, LOG_SUFFIX))
    return [index, cleaned_path(directory, name), log]


def next_generation(directory: Path) -> int:
    """Return a generation above those of all segments in a directory. Raises OSError."""
    names = map(SegmentName.parse, os.listdir(directory))
    return 1 + max((name.generation for name in names if name is not None), default=0)


def write_index(directory: Path, name: SegmentName, size: int, interval_bytes: int) -> None:
    """End step 1, for a log that was written and flushed. Raises OSError, StorageError."""
    reader = _Written(directory, name, size, name.end)
    try:
        index = SegmentIndex(name.base, interval_bytes)
        reader.complete_index(index)
        reader.write_index(index)
    finally:
        reader.close()
    sync_file(reader.index_path)


def commit(directory: Path, name: SegmentName) -> None:
    """Do step 2. Raises OSError: the new segment's files must be removed."""
    os.rename(cleaned_path(directory, name), files_of(directory, name)[-1])
    sync_directory(directory)
