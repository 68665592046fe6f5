"""Putting a compacted segment in the place of those that it was made from.

```
<base>.log                           a segment as it was appended to
<base>-<end>-<generation>.log        compacted: it stands for all of a lower generation in [base, end)
<…>.log.cleaned                      being written
```

1. The new segment is written to `.cleaned`, its index beside it, and both are flushed.
2. In an operation of the log's queue it is renamed to `.log`, and the directory is flushed. So no cut
   falls between a look at what the old ones are and the rename.
3. In the same operation the log takes it in the place of the old ones, in memory: it has a name of its
   own, so that nobody has read, or opens, anything else under it.
4. The old segments' files are removed, still in that operation: a cut would have what the new one
   stands for be seen no more.

A death before 2 leaves `.cleaned` and an index, which the next start removes.
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

from folkmoot.brokers.storage.files.atomic_file import sync_directory, sync_file
from folkmoot.brokers.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, SegmentName, SegmentReader
from folkmoot.brokers.storage.segment_index import SegmentIndex

CLEANED_SUFFIX: Final = ".cleaned"


class _Written(SegmentReader):
    """A new segment that has not got its name yet."""

    @property
    def path(self) -> Path:
        return cleaned_path(self.directory, self.name)


def cleaned_path(directory: Path, name: SegmentName) -> Path:
    """Where a new segment is written, whose end is not known yet."""
    return directory / f"{name._replace(end=0).stem}{LOG_SUFFIX}{CLEANED_SUFFIX}"


def files_of(directory: Path, name: SegmentName) -> list[Path]:
    """The files of a new segment, whatever it is called by now, in the order in which to remove them."""
    index, log = (directory / f"{name.stem}{suffix}" for suffix in (INDEX_SUFFIX, LOG_SUFFIX))
    return [index, cleaned_path(directory, name), log]


def next_generation(directory: Path) -> int:
    """A generation above those of all segments in a partition's directory. Raises OSError."""
    names = map(SegmentName.parse, os.listdir(directory))
    return 1 + max((name.generation for name in names if name is not None), default=0)


def write_index(directory: Path, name: SegmentName, size: int, interval_bytes: int) -> None:
    """The end of step 1, for what was written and flushed. Raises OSError, StorageError."""
    reader = _Written(directory, name, size, name.end)
    try:
        index = SegmentIndex(name.base, interval_bytes)
        reader.complete_index(index)
        reader.write_index(index)
    finally:
        reader.close()
    sync_file(reader.index_path)


def commit(directory: Path, name: SegmentName) -> None:
    """Step 2. Raises OSError: the log goes on without the new segment, whose files are to go."""
    os.rename(cleaned_path(directory, name), files_of(directory, name)[-1])
    sync_directory(directory)
