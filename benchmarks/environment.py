"""What the peers need, installed once below `.bench/`: their Python clients, Kafka's jars, Debian's servers.

Each package comes from its registry by its ordinary client, as that is set up on the machine.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.programs import ROOT

BENCH: Final = ROOT / ".bench"
REQUIREMENTS: Final = ROOT / "benchmarks" / "requirements.txt"
KAFKA_VERSION: Final = "4.3.1"
SPARK_VERSION: Final = "4.0.0"
INSTALL_TIMEOUT: Final = 600

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>folkmoot.benchmarks</groupId>
  <artifactId>{name}</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY: Final = """    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>"""
_KAFKA: Final = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    # Without a binding, slf4j drops what a broker that cannot start logs.
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
# Spark's own jars are PySpark's: scope `provided`, as in the source's pom.
_SPARK: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_VERSION),
    ("org.apache.spark", "spark-avro_2.13", SPARK_VERSION),
)


class Unavailable(Exception):
    """A peer cannot be run here; the message says why, and what to do."""


def peer_python() -> str:
    """The Python that has the peers' clients, and the library that draws. Raises Unavailable."""
    options = ["--require-hashes", "-r", str(REQUIREMENTS)]
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    return _python("venv", str(REQUIREMENTS.relative_to(ROOT)), options, digest)


def kafka_jars() -> Path:
    """The folder of Kafka's jars and all that they need. Raises Unavailable."""
    return _jars("kafka", f"Apache Kafka {KAFKA_VERSION}", _KAFKA)


def kafka_spark() -> tuple[str, Path]:
    """A Python with the PySpark that has a source for Kafka, and that source's jars. Raises Unavailable."""
    jars = _jars("spark-kafka", f"Spark's source for Kafka {SPARK_VERSION}", _SPARK)
    requirement = f"pyspark=={SPARK_VERSION}"
    return _python("spark-venv", requirement, [requirement], SPARK_VERSION), jars


def _python(name: str, label: str, options: Sequence[str], expected: str) -> str:
    """An environment with what pip installs by `options`, made anew when `expected` is another."""
    folder = BENCH / name
    python, stamp = folder / "bin" / "python", folder / "installed"
    if not _has(stamp, expected):
        shutil.rmtree(folder, ignore_errors=True)
        print(f"installing {label} into {folder.relative_to(ROOT)}", flush=True)
        _do([sys.executable, "-m", "venv", str(folder)], "making an environment failed")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _do([*pip, *options], f"installing {label} failed")
        stamp.write_text(expected)
    return str(python)


def _jars(name: str, title: str, artifacts: Sequence[tuple[str, str, str]]) -> Path:
    dependencies = "\n".join(_DEPENDENCY.format(*each) for each in artifacts)
    pom = _POM.format(name=name, dependencies=dependencies)
    folder = BENCH / name
    jars, stamp = folder / "jars", folder / "installed"
    digest = hashlib.sha256(pom.encode()).hexdigest()
    if not _has(stamp, digest):
        debian_program("mvn", "maven")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "pom.xml").write_text(pom)
        print(f"fetching {title} with Maven", flush=True)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        goal += ["-DincludeScope=runtime", "--file", str(folder / "pom.xml")]
        _do(["mvn", "--quiet", "--batch-mode", *goal], f"fetching the jars of {title} failed")
        stamp.write_text(digest)
    return jars


def _has(stamp: Path, expected: str) -> bool:
    return stamp.is_file() and stamp.read_text() == expected


def debian_program(program: str, package: str) -> str:
    """The path of a program, whose Debian package is installed if we may. Raises Unavailable."""
    found = _which(program)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {package} with apt-get", flush=True)
        apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
        _do([*apt, "update"], "apt-get update failed")
        _do([*apt, "install", "-y", "--no-install-recommends", package], f"no package {package}")
        found = _which(program)
    if found is None:
        raise Unavailable(
            f"no program {program}: install it (Debian, Ubuntu: apt install {package})"
        )
    return found


def _which(program: str) -> str | None:
    """Servers lie in sbin, which users often do not have on their PATH."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def _do(command: Sequence[str], failure: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=INSTALL_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{failure}: {error}") from error
    if result.returncode != 0:
        lines = result.stdout.decode(errors="replace").strip().splitlines()[-5:]
        raise Unavailable(f"{failure}, {command[0]} ended with: {' | '.join(lines) or 'nothing'}")


def installed_versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    """The versions that an environment has of some packages."""
    code = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]), sep='\\n')"
    command = [python, "-c", code, *packages]
    versions = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(packages, versions, strict=True))


def version_of(*command: str) -> str:
    """The first number with a dot in a program's output."""
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"\d+\.[\d.]*\d", result.stdout + result.stderr)
    return found[0] if found else "unknown"
