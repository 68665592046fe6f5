"""What a user gets: wheels with all of the code and none of the tests."""

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
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

import folkmoot
from folkmoot.admin.admin import Admin
from folkmoot.console.running.java import find_java, spark_java_home
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.producers.producer import Producer
from tests.console.cluster import without
from tests.tree import ROOT, code_folder, is_test, project_files, pyproject, python_files

VERSION: str = pyproject()["project"]["version"]

# Upper bounds, each for a reason that stands beside it in pyproject.toml.
CAPPED = ["pandas"]

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
    assert [re.split("[<>=]", line)[0] for line in capped] == CAPPED


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


def test_what_runs_in_spark_imports_nothing_that_its_extra_does_not_bring(tmp_path: Path) -> None:
    extras = pyproject()["project"]["optional-dependencies"]
    left_out = set().union(*(brought(extra) for extra in extras)) - brought("spark")
    modules = [
        module
        for module, owners in packages_distributions().items()
        if left_out & {each.lower().replace("_", "-") for each in owners}
    ]
    assert "prometheus_client" in modules
    without(tmp_path / "site", *modules)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "import folkmoot.spark_apps.membership, folkmoot.spark_apps.session\n"
        "import folkmoot.spark_apps.sink.writer, folkmoot.spark_apps.typed.reader_schema\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("place", ["Dockerfile", "integration/images/build", "docs/operations.md"])
def test_brokers_are_installed_with_every_codec_since_compaction_opens_batches(place: str) -> None:
    told = [
        each.split(",") for each in re.findall(r"\[(console[\w,]*)\]", (ROOT / place).read_text())
    ]
    assert told
    assert all({"lz4", "snappy"} <= set(extras) for extras in told)


def brought(extra: str) -> set[str]:
    """The distributions that an extra names, and those of extras that it names."""
    found: set[str] = set()
    for line in pyproject()["project"]["optional-dependencies"][extra]:
        name, *more = re.split(r"[\[,\]]", line.split("=")[0].rstrip("<>"))
        found |= {name} if name != "folkmoot" else set().union(*map(brought, filter(None, more)))
    return found


def test_the_version_is_the_same_wherever_it_stands() -> None:
    assert folkmoot.__version__ == VERSION
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text()
