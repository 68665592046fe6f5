"""Copy ZooKeeper's jars and their licences out of the PySpark that is installed where the wheel is built."""

import shutil
from importlib.metadata import distribution
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SERVER = (
    "zookeeper",
    "zookeeper-jute",
    "audience-annotations",
    "commons-cli",
    "commons-io",
    "metrics-core",
    "snappy-java",
)
LOGGING = ("slf4j-api", "log4j-api", "log4j-slf4j2-impl")
TLS = (
    "netty-buffer",
    "netty-codec",
    "netty-codec-base",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-classes-epoll",
    "netty-transport-native-unix-common",
)
# PySpark's say of each jar which licence it has, and what its authors want to be named for.
LICENSES = ("LICENSE", "NOTICE", "LICENSE-slf4j.txt")

FILES = distribution("pyspark").files or []


def find_one(pattern: str) -> Path:
    """The one file of PySpark that a pattern matches."""
    found = [Path(str(file.locate())) for file in FILES if file.match(pattern)]
    if len(found) != 1:
        raise SystemExit(f"PySpark has {len(found)} files {pattern}, not one: {found}")
    return found[0]


def copy_into(folder: Path, files: list[Path]) -> None:
    """Make a folder of these files, and of none that an earlier build has left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in files:
        shutil.copyfile(file, folder / file.name)


class BuildWithJars(build_py):
    """Adds the jars to the package."""

    def run(self) -> None:
        super().run()
        jars = [find_one(f"jars/{name}-[0-9]*.jar") for name in (*SERVER, *LOGGING, *TLS)]
        copy_into(Path(self.build_lib) / "folkmoot_zookeeper" / "jars", jars)


copy_into(Path("build/licenses"), [find_one(name) for name in LICENSES])
setup(
    version=find_one("jars/zookeeper-[0-9]*.jar").stem.removeprefix("zookeeper-"),
    cmdclass={"build_py": BuildWithJars},
)
