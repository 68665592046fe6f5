"""The shape of the code: who imports whom, how long things are, what may stand in a file."""

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.prose import is_marked, sentences_in
from tests.tree import (
    MAY_IMPORT,
    ONLY_IN,
    ROOMS,
    ROOT,
    code_folder,
    is_test,
    project_files,
    pyproject,
    python_files,
)

LONG_FILE = 600
FUNCTION_LINES = 70
FOLDER_FILES = 16

# Percent of sentences that may need two readings, by `tests/prose.py`.
MOST_MARKED = {"docs": 3.0}
MARKED = 2.0

# Folders that are rebuilt by what comes next.
LARGER_FOLDERS = {"brokers/server": 18, "protocol": 18}

# Folders of Python that are no part of the package, and are type-checked under their own names.
BESIDE_THE_CODE = {"benchmarks", "examples", "src", "stubs", "tests", "wheels"}

# Written in pieces, so that this file passes its own test.
LEFT_FOR_LATER = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.-])/(root|work|home/[a-z]\w*|Users/\w+|opt/wheels|tmp/\w+)/")
REGISTRY = re.compile(
    r"https?://[\w.:@-]*(pypi|pythonhosted|artifactory|jfrog|nexus|registry)"
    r"|(?<!emit-)\bindex[-_]url\b"
)


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


@cache
def parsed() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text(), str(path))) for path in python_files()]


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every absolute module name that is imported anywhere in a file, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "folkmoot":
                yield from ((f"folkmoot.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module, node.lineno


def test_imports_flow_one_way_between_folders() -> None:
    wrong = []
    for path, tree in parsed():
        folder = code_folder(path)
        if folder is None or is_test(path):
            continue
        allowed = MAY_IMPORT[folder] | {folder, "__version__"}
        for name, line in imported(tree):
            package, _, rest = name.partition(".")
            if package in ("tests", "benchmarks", "examples"):
                wrong.append(f"{where(path, line)}: imports {name}")
            elif package == "folkmoot" and rest.split(".")[0] not in allowed:
                wrong.append(f"{where(path, line)}: {folder}/ may not import {name}")
    assert not wrong, "\n".join(wrong)


def module_of(path: Path) -> str:
    relative = path.relative_to(ROOT).with_suffix("")
    return ".".join(("folkmoot", *relative.parts)).removesuffix(".__init__")


def uses() -> dict[str, set[str]]:
    """Which module of ours imports which, in functions too."""
    trees = {
        module_of(path): tree
        for path, tree in parsed()
        if code_folder(path) and not is_test(path) and path.suffix == ".py"
    }
    found: dict[str, set[str]] = {name: set() for name in trees}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found[name].add(whole if whole in trees else node.module)
            elif isinstance(node, ast.Import):
                found[name].update(alias.name for alias in node.names)
        found[name] = {each for each in found[name] if each in trees and each != name}
    return found


def room_of(module: str) -> str:
    """The longest row of the table of rooms that a module lies in."""
    rows = [room for room in ROOMS if module.startswith(f"folkmoot.{room.replace('/', '.')}.")]
    return max(rows, key=len, default="")


def test_imports_flow_one_way_between_rooms() -> None:
    wrong = []
    for module, used in uses().items():
        room = room_of(module)
        if room:
            for other in used:
                theirs = room_of(other)
                if theirs.split("/")[0] == room.split("/")[0] and theirs not in ROOMS[room] | {
                    room
                }:
                    wrong.append(f"{module} in {room}/ may not import {other} in {theirs}/")
    assert not wrong, "\n".join(sorted(wrong))


def test_no_module_imports_itself_through_others() -> None:
    below = uses()
    while below:
        free = {name for name, used in below.items() if not used & below.keys()}
        if not free:
            break
        below = {name: used for name, used in below.items() if name not in free}
    above = {name for used in below.values() for name in used}
    while below.keys() - above:  # those that only lead to a circle
        below = {name: used for name, used in below.items() if name in above}
        above = {name for used in below.values() for name in used}
    assert not below, f"circles among {sorted(below)}"


def test_no_folder_depends_on_itself_through_the_table() -> None:
    below = {
        name: allowed - {"console", "integration"}
        for name, allowed in MAY_IMPORT.items()
        if name not in ("console", "integration")
    }
    while below:
        free = {name for name, allowed in below.items() if not allowed & below.keys()}
        assert free, f"a circle among {sorted(below)}"
        below = {name: allowed for name, allowed in below.items() if name not in free}


def test_each_hidden_library_is_imported_by_its_folder_only() -> None:
    wrong = [
        f"{where(path, line)}: only {ONLY_IN[library]}/ imports {library}"
        for path, tree in parsed()
        if path.suffix == ".py" and (code_folder(path) or path.is_relative_to(ROOT / "src"))
        for name, line in imported(tree)
        if (library := name.partition(".")[0]) in ONLY_IN and code_folder(path) != ONLY_IN[library]
    ]
    assert not wrong, "\n".join(wrong)


def test_no_import_is_relative() -> None:
    wrong = [
        where(path, node.lineno)
        for path, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not wrong, "\n".join(wrong)


def test_long_files_are_reported_and_allowed() -> None:
    """A file is one concept, as long as that is: what is reported is for a reader to look at."""
    sizes = {path: len(path.read_text().splitlines()) for path in python_files()}
    long = sorted((size, path) for path, size in sizes.items() if size > LONG_FILE)
    for size, path in reversed(long):
        print(f"{where(path, size)}: look whether it is one concept")


def test_folders_of_code_have_at_most_about_fifteen_files() -> None:
    folders: dict[Path, int] = {}
    for path in python_files():
        if code_folder(path) and path.name != "__init__.py" and not is_test(path):
            folders[path.parent] = folders.get(path.parent, 0) + 1
    allowed = {ROOT / folder: number for folder, number in LARGER_FOLDERS.items()}
    wrong = {
        str(folder.relative_to(ROOT)): number
        for folder, number in folders.items()
        if number > allowed.get(folder, FOLDER_FILES)
    }
    assert not wrong


@pytest.mark.parametrize("folder", ["docs", *MAY_IMPORT])
def test_few_sentences_of_a_folder_need_two_readings(folder: str) -> None:
    sentences = [sentence for _, sentence in sentences_in(folder)]
    marked = [sentence for sentence in sentences if is_marked(sentence)]
    assert 100 * len(marked) / len(sentences) <= MOST_MARKED.get(folder, MARKED), marked


def test_functions_are_shorter_than_70_lines() -> None:
    """The docstring is not counted: nobody is to save on it."""
    wrong = []
    for path, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                documented = ast.get_docstring(node, clean=False) is not None
                first = node.body[0]
                described = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
                lines = (node.end_lineno or 0) - node.lineno + 1 - described
                if lines >= FUNCTION_LINES:
                    wrong.append(f"{where(path, node.lineno)}: {node.name} has {lines} lines")
    assert not wrong, "\n".join(wrong)


def test_every_code_folder_is_packaged() -> None:
    setup = ast.parse((ROOT / "setup.py").read_text())
    (folders,) = (
        ast.literal_eval(node.value)
        for node in setup.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FOLDERS"
    )
    assert sorted(folders) == list(folders)
    assert set(folders) == MAY_IMPORT.keys()


def test_every_code_folder_is_linked_where_type_checkers_look() -> None:
    package = ROOT / "src" / "folkmoot"
    links = {path.name: os.readlink(path) for path in package.iterdir() if path.is_symlink()}
    assert links == {name: f"../../{name}" for name in MAY_IMPORT}


def test_every_code_folder_is_banned_under_its_bare_name() -> None:
    banned = pyproject()["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    folders = {name for name in banned if "." not in name}
    assert folders == MAY_IMPORT.keys() | {"src"}


def test_every_folder_of_python_is_type_checked() -> None:
    checked = set(pyproject()["tool"]["mypy"]["files"])
    tops = {path.relative_to(ROOT).parts[0] for path in python_files()}
    assert tops - MAY_IMPORT.keys() <= checked
    assert {top for top in tops if (ROOT / top).is_dir()} <= MAY_IMPORT.keys() | BESIDE_THE_CODE


def test_every_folder_of_code_or_tests_has_one_sentence_about_it() -> None:
    silent = [
        where(path, 1)
        for path, tree in parsed()
        if path.name == "__init__.py" and ast.get_docstring(tree) is None
    ]
    assert not silent, "\n".join(silent)


def test_nothing_is_left_for_later_and_no_file_names_a_machine_or_a_registry() -> None:
    wrong = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            for pattern in (LEFT_FOR_LATER, MACHINE_PATH, REGISTRY):
                if found := pattern.search(line):
                    wrong.append(f"{where(path, number)}: {found.group()}")
    assert not wrong, "\n".join(wrong)
