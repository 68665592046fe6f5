"""A fingerprint of the code that histories run through: what was done under another does not count.

It is of the files that are imported from a history's module on, and from these, and so on, be it within
a function; of no others. What is changed elsewhere leaves the histories what they were.
"""

import ast
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
GROUPS: Final = "tests.simulation.history"


def fingerprint(begin: str = GROUPS) -> str:
    digest = sha256()
    for path in sorted(files(begin)):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def first_seed(code: str) -> int:
    """Where histories of this fingerprint begin: the same code has the same verdict, and each change of it
    meets histories that nobody has seen before."""
    return int(code[:8], 16) * 1000


def files(begin: str = GROUPS) -> set[Path]:
    """The project's modules that a history needs; of packages nothing, as they are empty."""
    found: set[Path] = set()
    todo = [begin]
    while todo:
        path = _path(todo.pop())
        if path.is_file() and path not in found:
            found.add(path)
            todo += _imported(path)
    return found


def _path(module: str) -> Path:
    """Where it would lie, if it were one of ours (the package `folkmoot` is the root folder)."""
    return ROOT.joinpath(*module.removeprefix("folkmoot.").split(".")).with_suffix(".py")


def _imported(path: Path) -> Iterator[str]:
    """Imports are absolute here. What is imported from a package may be a module."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
