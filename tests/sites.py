"""Folders with what an installation of folkmoot has, made of links to what is installed here."""

from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tree import ROOT, pyproject


def declared(extra: str = "") -> set[str]:
    """The distributions that pyproject.toml names for an extra, or for every installation."""
    project = pyproject()["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    found = set[str]()
    for requirement in map(Requirement, lines):
        if requirement.name == "folkmoot":
            found.update(*map(declared, requirement.extras))
        else:
            found.add(canonicalize_name(requirement.name))
    return found


def make_site(folder: Path, *extras: str) -> Path:
    """A folder for `sys.path` that has folkmoot with these extras and no other library."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in ("folkmoot", "pyspark_folkmoot"):
        (folder / package).symlink_to(ROOT / "src" / package)
    names = declared().union(*map(declared, extras))
    for name in _with_dependencies(names):
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            link = folder / top
            if not link.is_symlink():
                link.symlink_to(str(distribution(name).locate_file(top)))
    return folder


def _with_dependencies(names: Iterable[str]) -> set[str]:
    found = set[str]()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= set(_needed_by(name)) - found
    return found


def _needed_by(name: str) -> Iterator[str]:
    for requirement in map(Requirement, distribution(name).requires or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)
