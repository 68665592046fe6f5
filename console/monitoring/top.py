"""`folkmoot top`: brokers, topics, groups and rebalances live, until Ctrl-C."""

import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

from folkmoot.console.options.cluster import Cluster, with_zookeeper
from folkmoot.console.options.names import GROUP
from folkmoot.console.options.values import ParsedType, wait_time
from folkmoot.console.signals import sigterm_like_ctrl_c
from folkmoot.protocol.errors import ConfigError, FolkmootError, UnknownGroup

if TYPE_CHECKING:
    from folkmoot.admin.admin import Admin
    from folkmoot.console.monitoring.frame import ClusterSnapshot, Group

INTERVAL: Final = 2.0
MIN_INTERVAL: Final = 0.1
MAX_GROUPS: Final = 50
"""Only the first groups by name are looked at: each costs some reads of ZooKeeper."""

_FULL_SCREEN: Final = "\x1b[?1049h\x1b[?25l"
_RESTORE_SCREEN: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"
_OTHER_LINES: Final = 18
"""Lines of a frame that are no rows of a table."""


def _interval(text: str) -> float:
    seconds = wait_time(text)
    if seconds < MIN_INTERVAL:
        raise ConfigError(f"{text!r} is too short: give {MIN_INTERVAL:g}s or more")
    return seconds


@click.command()
@click.option(
    "--interval",
    type=ParsedType("time", _interval),
    default=f"{INTERVAL:g}s",
    help="Between two looks.",
)
@click.option(
    *("--group", "groups"),
    type=GROUP,
    multiple=True,
    help=f"Only this group; may be repeated (default: the first {MAX_GROUPS} by name).",
)
@click.option("--once", is_flag=True, help="Look twice, show one whole frame, and end.")
@with_zookeeper()
def command(cluster: Cluster, interval: float, groups: tuple[str, ...], once: bool) -> int:
    """Watch brokers, topics, groups with their lag, and rebalances as they happen, until Ctrl-C.

    Rates are those between two looks. A group's lag counts from what it has committed.
    """
    with sigterm_like_ctrl_c(), cluster.admin() as admin:
        for name in groups:
            admin.group_offsets(name)  # an unknown group is an error before the first look
        history = _ClusterHistory(admin, groups or None)
        history.refresh()
        if once:
            time.sleep(interval)
            history.refresh()
            print("\n".join(history.frame(None)))
            return 0
        with suppress(KeyboardInterrupt), _screen() as show:
            _watch(history, interval, show)
    return 0


def _watch(history: "_ClusterHistory", interval: float, show: "_Show") -> None:
    """Show frame after frame; an error takes the place of a frame, and reading is tried again."""
    while True:
        time.sleep(interval)
        try:
            history.refresh()
            height = shutil.get_terminal_size().lines
            show(history.frame(max(2, (height - _OTHER_LINES) // 3)))
        except FolkmootError as error:
            show([f"{error}; trying again"])


class _ClusterHistory:
    """The last two looks, and the rebalances seen since the first, or noted before it."""

    def __init__(self, admin: "Admin", group_names: Sequence[str] | None) -> None:
        """`group_names` are the groups to look at."""
        from folkmoot.console.monitoring.frame import EVENTS

        self._admin = admin
        self._group_names = group_names
        self._snapshots: deque[ClusterSnapshot] = deque(maxlen=2)
        self._generations: dict[str, int] = {}
        self._events: deque[str] = deque(maxlen=EVENTS)

    def refresh(self) -> None:
        """Raises ZooKeeperUnreachable and other errors of reading."""
        from folkmoot.console.monitoring.frame import ClusterSnapshot, Group

        admin = self._admin
        group_names = admin.group_names() if self._group_names is None else self._group_names
        groups = []
        for each in admin.groups(group_names[:MAX_GROUPS]):
            try:
                groups.append(Group(each, admin.group_offsets(each.name)))
            except UnknownGroup:
                continue  # it was deleted meanwhile
        cluster, sizes = admin.cluster(), admin.log_sizes()
        self._snapshots.append(
            ClusterSnapshot(
                at=time.monotonic(),
                cluster=cluster,
                sizes=sizes,
                groups=groups,
                more_groups=max(0, len(group_names) - MAX_GROUPS),
            )
        )
        self._note(groups)

    def _note(self, groups: "Sequence[Group]") -> None:
        """Read the last rebalances of the groups that had one since the look before."""
        from folkmoot.console.cluster.group import headline

        new_events = []
        for group in groups:
            name, generation = group.summary.name, group.summary.generation
            before = self._generations.get(name)
            self._generations[name] = generation
            if generation == before:
                continue
            try:
                entries = self._admin.group_events(name)
            except UnknownGroup:
                continue
            first = generation if before is None else before + 1
            new_events += [(each.at_ms, name, each) for each in entries if each.generation >= first]
        for _, name, entry in sorted(new_events, key=lambda each: each[:2]):
            joined, left = len(entry.joined), len(entry.left)
            self._events.appendleft(
                f"{headline(entry)}  {name}: {joined} joined, {left} left, {entry.moved} moved"
            )

    def frame(self, limit: int | None) -> list[str]:
        from folkmoot.console.monitoring.frame import frame

        return frame(self._snapshots[0], self._snapshots[-1], self._events, limit)


class _Show:
    """Writes frames: over each other on a terminal, one behind the other elsewhere."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal

    def __call__(self, lines: Sequence[str]) -> None:
        if not self._is_terminal:
            print("\n".join(lines), "", sep="\n", flush=True)
            return
        width, height = shutil.get_terminal_size()
        visible = [line[:width] + _CLEAR_LINE for line in lines[:height]]
        print(_HOME + "\r\n".join(visible) + _CLEAR_BELOW, end="", flush=True)


@contextmanager
def _screen() -> Iterator[_Show]:
    """A terminal's other screen while it lasts."""
    is_terminal = sys.stdout.isatty()
    if is_terminal:
        print(_FULL_SCREEN, end="", flush=True)
    try:
        yield _Show(is_terminal=is_terminal)
    finally:
        if is_terminal:
            print(_RESTORE_SCREEN, end="", flush=True)
