"""What pyproject.toml cannot say: tests live beside the code and stay out of the wheel."""

from fnmatch import fnmatch

from setuptools import setup
from setuptools.command.build_py import build_py

TEST_FILES = ("test_*", "conftest")


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


setup(cmdclass={"build_py": BuildWithoutTests})
