"""Draws `docs/assets/recording.svg`, a terminal in which a group survives a kill: `make recording`.

The commands below run in a shell, and the drawing shows what they print. A line appears when its command
is typed, or when its output is shown; the text of a browser without animations is complete at once.
Left out are the columns of host and process, hints, and empty lines.
"""

import re
import tempfile
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from tests.pages import Shell
from tests.tree import ROOT

DRAWING: Final = ROOT / "docs" / "assets" / "recording.svg"
WIDTH: Final = 96
"""Characters of a line; longer ones are cut."""
CHARACTER: Final = 8.43
LINE: Final = 19
MARGIN: Final = 18
BAR: Final = 34
READ_COMMAND: Final = 1.0
"""Seconds between a command and its output."""
READ_OUTPUT: Final = 1.2
PATIENCE: Final = 30.0


class Step(NamedTuple):
    """A command, what it must print before the drawing continues, and how it is run if not as shown."""

    shown: str
    expected: str = ""
    run: str = ""
    comment: str = ""


PORT: Final = 2181
DEV: Final = f"folkmoot dev --data data --port {PORT} > dev.log 2>&1 & sleep 1; cat dev.log"
MEMBER: Final = f"""\
import sys
from folkmoot import Consumer

with Consumer(
    zookeeper="localhost:{PORT}", group="kitchen", topics=["orders"], client_id=sys.argv[1]
) as consumer:
    for record in consumer:
        print(record.value.decode(), flush=True)
"""
PRODUCE: Final = "do echo $n=coffee $n; done | folkmoot produce orders --key-separator ="
BOTH: Final = r"(?s)(?=.*ada-.*ada-)(?=.*ben-.*ben-)(.* 0\.0 ){4}"
BEN: Final = r"(?s)(ben-.*){4}"
STEPS: Final = (
    Step(f"folkmoot dev --port {PORT} &", "Ctrl-C", DEV, "# ZooKeeper and three brokers"),
    Step(f"export FOLKMOOT_ZOOKEEPER=localhost:{PORT}"),
    Step("folkmoot topic create orders --partitions 4", "created"),
    Step(f"for n in {{1..20}}; {PRODUCE}", "produced 20"),
    Step(
        "python cook.py ada > ada.log & ada=$!",
        comment="# two members of the group kitchen: each prints the values of its records",
    ),
    Step("python cook.py ben > ben.log &"),
    Step("folkmoot group describe kitchen", BOTH),
    Step("kill -9 $ada", comment="# ben takes over at once, from what ada has committed"),
    Step("folkmoot group describe kitchen", BEN),
    Step(f"for n in {{21..40}}; {PRODUCE}", "produced 20"),
    Step("cat ada.log ben.log | sort -u | wc -l", "^40$", comment="# nothing is lost"),
)


def record() -> list[tuple[float, str, str]]:
    """Run the steps: the second, the kind (command, comment or output) and the text of each line."""
    lines: list[tuple[float, str, str]] = []
    now = 0.0
    with tempfile.TemporaryDirectory() as directory, Shell(Path(directory), {}) as shell:
        (shell.directory / "cook.py").write_text(MEMBER, encoding="utf-8")
        for step in STEPS:
            if step.comment:
                lines.append((now, "comment", step.comment))
            lines.append((now, "command", f"$ {step.shown}"))
            now += READ_COMMAND
            printed = list(_printed(shell, step))
            lines += [(now, "output", line) for line in printed]
            now += READ_OUTPUT if printed else 0.0
        shell.run("kill $(jobs -p); wait")
    return lines


def _printed(shell: Shell, step: Step) -> Iterator[str]:
    """The output, once it is as expected: a group needs a moment to settle, and a cluster to start."""
    deadline = time.monotonic() + PATIENCE
    command = step.run or step.shown
    if "&" not in command:
        command = f"{{ {command}; }} 2>&1"
    code, printed = shell.run(command)
    while not re.search(step.expected, printed.strip()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{command}: {printed}{shell.errors.read_text()}")
        code, printed = shell.run("sleep 0.3; cat dev.log" if step.run else command)
    if code:
        raise RuntimeError(f"{command}: exit code {code}: {shell.errors.read_text()}")
    printed = printed.replace(str(shell.directory), "~")
    yield from map(_narrow, filter(_is_shown, printed.splitlines()))


def _is_shown(line: str) -> bool:
    """Neither the shell's report of the killed process, nor hints of `folkmoot dev`."""
    return bool(line) and not line.startswith(("bash: ", "data ", "registry ", "export ", "Ctrl-C"))


def _narrow(line: str) -> str:
    """A row of `group describe` without host and process, and with the client id as the owner."""
    cells = line.split()
    if not cells or cells[0] not in ("topic", "orders"):
        return line
    topic, partition, owner, _, _, *rest = cells
    left = f"{topic:<8}{partition:>9}  {owner.partition('-')[0]:<7}"
    return left + "".join(f"{cell:>11}" for cell in rest)


def drawing(lines: list[tuple[float, str, str]]) -> str:
    width = WIDTH * CHARACTER + 2 * MARGIN
    height = BAR + len(lines) * LINE + MARGIN
    rows = (
        f'<text x="{MARGIN}" y="{BAR + number * LINE + 14}" class="{kind}" '
        f'style="animation-delay:{second:.1f}s">{escape(text[:WIDTH])}</text>'
        for number, (second, kind, text) in enumerate(lines)
    )
    lights = (
        f'<circle cx="{20 + 20 * number}" cy="17" r="6" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
            "<title>A terminal: a cluster starts, a member of a group is killed, another takes over"
            "</title>",
            "<style>",
            "text { font: 14px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace;",
            "  white-space: pre; fill: #c9d1d9; opacity: 1 }",
            ".command { fill: #ffffff; font-weight: 600 } .comment { fill: #7ee787 }",
            "@media (prefers-reduced-motion: no-preference) {",
            "  text { opacity: 0; animation: appear 0.1s forwards } }",
            "@keyframes appear { to { opacity: 1 } }",
            "</style>",
            '<rect width="100%" height="100%" rx="9" fill="#0d1117"/>',
            *lights,
            *rows,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    DRAWING.parent.mkdir(exist_ok=True)
    DRAWING.write_text(drawing(record()), encoding="utf-8")
