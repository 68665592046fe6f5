"""The shape of the code: who imports whom, how long things are, what may stand in a file."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tree import (
    MAY_IMPORT,
    ONLY_IN,
    ROOT,
    code_folder,
    is_test,
    project_files,
    pyproject,
    python_files,
)

FILE_LINES = 400
FUNCTION_LINES = 70

# Folders of Python that are no part of the package, and are type-checked under their own names.
BESIDE_THE_CODE = {"benchmarks", "examples", "src", "stubs", "tests"}

# Written in pieces, so that this file passes its own test.
LEFT_FOR_LATER = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.-])/(root|work|home/[a-z]\w*|Users/\w+|opt/wheels|tmp/\w+)/")
REGISTRY = re.compile(
    r"https?://[\w.:@-]*(pypi|pythonhosted|artifactory|jfrog|nexus|registry)"
    r"|(?<!emit-)\bindex[-_]url\b"
)


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def parsed() -> Iterator[tuple[Path, ast.Module]]:
    for path in python_files():
        yield path, ast.parse(path.read_text(), str(path))


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


def test_files_are_at_most_400_lines_long() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in python_files()}
    wrong = [f"{where(path, size)}" for path, size in sizes.items() if size > FILE_LINES]
    assert not wrong, "\n".join(wrong)


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


def test_folders_and_packaging_table_agree() -> None:
    setuptools = pyproject()["tool"]["setuptools"]
    mapping = dict(setuptools["package-dir"])
    assert sorted(setuptools["packages"]) == setuptools["packages"]
    assert sorted(mapping) == sorted(setuptools["packages"])
    expected = {"folkmoot": "src/folkmoot", "pyspark_folkmoot": "src/pyspark_folkmoot"}
    for path in python_files():
        if path.name == "__init__.py" and code_folder(path):
            relative = path.parent.relative_to(ROOT)
            expected[".".join(("folkmoot", *relative.parts))] = str(relative)
    assert mapping == expected
    assert {name.split(".")[1] for name in mapping if "." in name} == MAY_IMPORT.keys()


def test_every_code_folder_is_linked_where_type_checkers_look() -> None:
    package = ROOT / "src" / "folkmoot"
    links = {path.name: os.readlink(path) for path in package.iterdir() if path.is_symlink()}
    assert links == {name: f"../../{name}" for name in MAY_IMPORT}


def test_every_code_folder_is_banned_under_its_bare_name() -> None:
    banned = pyproject()["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert banned.keys() == MAY_IMPORT.keys() | {"src"}


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
