"""What pyproject.toml cannot say: which folders are packages, and that tests stay out of the wheel."""

from fnmatch import fnmatch
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

TEST_FILES = ("test_*", "conftest")

# Each top-level folder of code is one subpackage of folkmoot, with all packages below it.
FOLDERS = (
    "brokers",
    "console",
    "consumers",
    "coordination",
    "integration",
    "network",
    "producers",
    "protocol",
    "schemas",
    "spark_apps",
)


def package_dirs() -> dict[str, str]:
    """Where each package lies; the links in src/folkmoot are for type checkers alone."""
    found = {"folkmoot": "src/folkmoot", "pyspark_folkmoot": "src/pyspark_folkmoot"}
    for folder in FOLDERS:
        for marker in Path(folder).rglob("__init__.py"):
            found[".".join(("folkmoot", *marker.parent.parts))] = str(marker.parent)
    return found


class BuildWithoutTests(build_py):
    """Leaves out test modules and pytest's configuration, which no user of the wheel can run."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules: list[tuple[str, str, str]]
        modules = super().find_package_modules(package, package_dir)  # type: ignore[no-untyped-call]
        return [
            module
            for module in modules
            if not any(fnmatch(module[1], pattern) for pattern in TEST_FILES)
        ]


dirs = package_dirs()
setup(packages=sorted(dirs), package_dir=dirs, cmdclass={"build_py": BuildWithoutTests})
