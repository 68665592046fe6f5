"""What pyproject.toml cannot say: which folders are packages, which modules are compiled, and that tests
stay out of the wheel."""

from fnmatch import fnmatch
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

TEST_FILES = ("test_*", "conftest")

# Each top-level folder of code is one subpackage of folkmoot, with all packages below it.
FOLDERS = (
    "admin",
    "brokers",
    "console",
    "consumers",
    "coordination",
    "integration",
    "metrics",
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
    found["folkmoot.examples.spark"] = "examples/spark"  # for `folkmoot spark`
    return found


def extensions() -> list[Extension]:
    """Every .pyx file. Without a compiler, plain Python does the same, but for columns of Avro values."""
    found = [
        Extension(
            ".".join(("folkmoot", *path.with_suffix("").parts)),
            [str(path)],
            extra_compile_args=["-g0"],
        )
        for folder in FOLDERS
        for path in sorted(Path(folder).rglob("*.pyx"))
    ]
    modules: list[Extension] = cythonize(  # type: ignore[no-untyped-call]
        found, build_dir="build/cython", quiet=True
    )
    for module in modules:
        module.optional = True  # here, since cythonize forgets it
    return modules


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


class EditableByPath(editable_wheel):
    """Installs a checkout as a path, along the links: type checkers do not see setuptools' finder."""

    def initialize_options(self) -> None:
        super().initialize_options()
        if Path("src/folkmoot/protocol").is_dir():
            self.mode = "compat"


dirs = package_dirs()
setup(
    packages=sorted(dirs),
    package_dir=dirs | {"": "src"},
    ext_modules=extensions(),
    cmdclass={"build_py": BuildWithoutTests, "editable_wheel": EditableByPath},
)
