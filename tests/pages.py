"""Pages of the docs as their readers follow them: block by block, in one shell."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from tests.waiting import PAUSE

PATIENCE = 30.0

_BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_END = "== end of a command, exit code "

# What a reader does in another terminal, or once; a test's fixtures have done it.
_PREPARED = ("make ", ". .venv/", "folkmoot dev", "folkmoot registry", "export ")
# These only look: a reader whom the page shows more than the screen looks again.
_LOOKS = ("folkmoot group describe", "folkmoot consume", "cat ", "sort ")


class Block(NamedTuple):
    """What stands between two fences; `title` is the file that it is to be saved as, or ""."""

    language: str
    title: str
    text: str

    def commands(self) -> Iterator[tuple[str, str]]:
        """What stands behind each prompt, and what the page shows below it."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            yield command, shown


def blocks_of(page: Path) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(page.read_text(encoding="utf-8"))]


class Shell:
    """A terminal. Errors of what runs in it go to `errors`; all of it ends with the block."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        programs = Path(sys.executable).parent
        self.directory = directory
        self.errors = directory / "errors.log"
        self._environment = {
            **os.environ,
            **environment,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }

    def __enter__(self) -> Self:
        with self.errors.open("wb") as errors:
            self._bash = subprocess.Popen(
                ["bash"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.directory,
                env=self._environment,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()

    def run(self, command: str) -> tuple[int, str]:
        """Its exit code, and what it has printed."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        # What a command prints may not end its line.
        self._bash.stdin.write(f"{command}\nprintf '\\n%s%s\\n' '{_END}' $?\n")
        self._bash.stdin.flush()
        printed = ""
        for line in self._bash.stdout:
            if line.startswith(_END):
                return int(line.removeprefix(_END)), printed
            printed += line
        raise AssertionError(f"the shell has ended: {self.errors.read_text()}")

    def show(self, command: str, shown: str) -> None:
        """Run it, and see that it prints this: "…" is anything, and padding is not looked at."""
        pattern = re.escape(" ".join(shown.split())).replace("…", ".*?")
        deadline = time.monotonic() + (PATIENCE if command.startswith(_LOOKS) else 0.0)
        while True:
            code, printed = self.run(command)
            if code == 0 and re.fullmatch(pattern, " ".join(printed.split())):
                return
            if time.monotonic() >= deadline:
                raise AssertionError(
                    f"$ {command}\n{printed}exit code {code}, in place of\n{shown}{self.errors.read_text()}"
                )
            time.sleep(PAUSE)


def follow(page: Path, directory: Path, environment: Mapping[str, str]) -> None:
    """Save the files, run the programs and commands of a page, and see what it shows."""
    with Shell(directory, environment) as shell:
        for number, block in enumerate(blocks_of(page)):
            if block.title:
                (directory / block.title).write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                (directory / f"block_{number}.py").write_text(block.text, encoding="utf-8")
                shell.show(f"python block_{number}.py", "…")
            elif block.language == "console":
                for command, shown in block.commands():
                    if not command.startswith(_PREPARED):
                        shell.show(command, shown)


def words_of(blocks: list[Block]) -> list[list[str]]:
    """All commands, as words."""
    return [
        shlex.split(command)
        for block in blocks
        if block.language == "console"
        for command, _ in block.commands()
    ]
