"""Putting a compacted segment in the place of those that it was made from.

```
<base>.cleaned/      being written: <base>.log, .index, .timeindex
<base>-<end>.swap/   finished and on disk: it is to replace all segments from base up to end
```

1. All files are written into `.cleaned` and flushed, in the background.
2. `.cleaned` is renamed to `.swap`. Until here a crash undoes all; from here on it is finished.
3. The partition's directory is flushed, in the background.
4. The old segments' files are renamed to `*.deleted`.
5. The new indexes are moved to the partition, then the new `.log`: now all is done.
6. The partition's directory is flushed, in the background.
7. `.swap` and `*.deleted` are removed, in the background; else the next start does it.

"The swap is finished" is `finish`, at the next start, before segments are looked for: as long as
`.swap` has the `.log`, steps 4 and 5 are done again. Its name says by itself what is replaced.
A power cut may take any renames that were not flushed yet, the last ones first; each such state is
one of those above. A second crash while finishing finds one of them, too.
"""

import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from folkmoot.brokers.storage import directories
from folkmoot.brokers.storage.atomic_file import flush_file, sync_directory
from folkmoot.brokers.storage.damage import DAMAGE_SUFFIX
from folkmoot.brokers.storage.directories import LOG_SUFFIX
from folkmoot.brokers.storage.indexes import INDEX_SUFFIX, TIME_INDEX_SUFFIX

logger = logging.getLogger(__name__)

_CLEANED: Final = ".cleaned"
_SWAP: Final = ".swap"
_NAME = re.compile(r"(?P<base>[0-9]{20})(\.cleaned|-(?P<end>[0-9]{20})\.swap)")
# The log last: whoever sees it in its place knows that all before was done.
_NEW_FILES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX)
# The log last here too: without it the others would be taken for those of the new one.
_OLD_FILES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, DAMAGE_SUFFIX, LOG_SUFFIX)


class Replacement(NamedTuple):
    """A segment that is to replace all those of a partition that begin in `[base, end)`."""

    directory: Path
    base: int
    end: int

    @property
    def cleaned(self) -> Path:
        return self.directory / f"{self.base:020}{_CLEANED}"

    @property
    def swap(self) -> Path:
        return self.directory / f"{self.base:020}-{self.end:020}{_SWAP}"

    def new_log(self, where: Path) -> Path:
        """The new segment's log in one of the directories that it goes through."""
        return where / f"{self.base:020}{LOG_SUFFIX}"

    def begin(self) -> Path:
        """Step 1 begins: an empty `.cleaned`. → the log to be written. Raises OSError."""
        shutil.rmtree(self.cleaned, ignore_errors=True)
        self.cleaned.mkdir()
        return self.new_log(self.cleaned)

    def written(self) -> None:
        """Step 1 ends: all files are closed. Raises OSError."""
        for path in self.cleaned.iterdir():
            flush_file(path)
        sync_directory(self.cleaned)

    def commit(self) -> None:
        """Step 2. Raises OSError."""
        self.cleaned.rename(self.swap)

    def flush(self) -> None:
        """Steps 3 and 6. Raises OSError."""
        sync_directory(self.directory)

    def put_aside(self) -> list[Path]:
        """Step 4. → what the old files are called now. Raises OSError."""
        old = []
        for base in sorted(_bases(self.directory)):
            if self.base <= base < self.end:
                old += [self.directory / f"{base:020}{suffix}" for suffix in _OLD_FILES]
        return directories.put_aside(old)

    def move_in(self) -> None:
        """Step 5. Raises OSError."""
        for suffix in _NEW_FILES:
            name = f"{self.base:020}{suffix}"
            if suffix == LOG_SUFFIX or (self.swap / name).exists():
                (self.swap / name).rename(self.directory / name)

    def clear(self) -> None:
        """Step 7, for `.swap`. Raises OSError."""
        shutil.rmtree(self.swap)

    def undo(self) -> None:
        """Give up a replacement before step 4. Raises OSError."""
        for path in (self.cleaned, self.swap):
            shutil.rmtree(path, ignore_errors=True)


def settle(replacement: Replacement, doomed: Sequence[Path]) -> None:
    """Steps 6 and 7. Raises OSError."""
    replacement.flush()
    replacement.clear()
    directories.remove(doomed)


def finish(directory: Path) -> None:
    """End what a crash has interrupted; the partition is not open yet. Raises OSError."""
    for replacement, state in list(_interrupted(directory)):
        if state == _SWAP and replacement.new_log(replacement.swap).exists():
            logger.warning(
                "%s: finishing an interrupted compaction of offsets %d to %d",
                *(directory, replacement.base, replacement.end - 1),
            )
            replacement.put_aside()
            replacement.move_in()
        if state == _SWAP:
            replacement.flush()
        replacement.undo()


def _interrupted(directory: Path) -> Iterator[tuple[Replacement, str]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is not None:
                base, end = int(match["base"]), match["end"]
                yield Replacement(directory, base, int(end or 0)), _SWAP if end else _CLEANED


def _bases(directory: Path) -> Iterator[int]:
    with os.scandir(directory) as entries:
        for entry in entries:
            stem, dot, suffix = entry.name.partition(".")
            if len(stem) == 20 and stem.isdigit() and dot + suffix in _OLD_FILES:
                yield int(stem)
