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

from benchmarks.peers.base import Unavailable
from benchmarks.programs import ROOT

BENCH: Final = ROOT / ".bench"
REQUIREMENTS: Final = ROOT / "benchmarks" / "requirements.txt"
KAFKA_VERSION: Final = "4.3.1"
SPARK_VERSION: Final = "4.0.0"
INSTALL_TIMEOUT: Final = 600

# Without a binding, slf4j drops what a broker that cannot start has to say.
_POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>folkmoot.benchmarks</groupId>
  <artifactId>kafka</artifactId>
  <version>{KAFKA_VERSION}</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-tools</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""

# Spark's own jars are PySpark's: scope `provided`, as in the source's pom.
_SPARK_POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>folkmoot.benchmarks</groupId>
  <artifactId>spark-kafka</artifactId>
  <version>{SPARK_VERSION}</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId>
      <artifactId>spark-sql-kafka-0-10_2.13</artifactId>
      <version>{SPARK_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.spark</groupId>
      <artifactId>spark-avro_2.13</artifactId>
      <version>{SPARK_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def peer_python() -> str:
    """The Python that has the peers' clients. Raises Unavailable."""
    folder = BENCH / "venv"
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)
    print(
        f"installing {REQUIREMENTS.relative_to(ROOT)} into {folder.relative_to(ROOT)}", flush=True
    )
    _do([sys.executable, "-m", "venv", str(folder)], "making an environment failed")
    options = ["--quiet", "--require-hashes", "-r", str(REQUIREMENTS)]
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *options]
    _do(pip, "installing the peers' Python clients failed")
    stamp.write_text(wanted)
    return str(python)


def kafka_jars() -> Path:
    """The folder of Kafka's jars and all that they need. Raises Unavailable."""
    return _jars("kafka", f"Apache Kafka {KAFKA_VERSION}", _POM)


def kafka_spark() -> tuple[str, Path]:
    """A Python with the PySpark that has a source for Kafka, and that source's jars. Raises Unavailable."""
    jars = _jars("spark-kafka", f"Spark's source for Kafka {SPARK_VERSION}", _SPARK_POM)
    folder = BENCH / "spark-venv"
    python, stamp = folder / "bin" / "python", folder / "installed"
    if not (stamp.is_file() and stamp.read_text() == SPARK_VERSION):
        shutil.rmtree(folder, ignore_errors=True)
        print(f"installing PySpark {SPARK_VERSION} into {folder.relative_to(ROOT)}", flush=True)
        _do([sys.executable, "-m", "venv", str(folder)], "making an environment failed")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _do([*pip, f"pyspark=={SPARK_VERSION}"], f"installing PySpark {SPARK_VERSION} failed")
        stamp.write_text(SPARK_VERSION)
    return str(python), jars


def _jars(name: str, title: str, pom: str) -> Path:
    folder = BENCH / name
    stamp = folder / "installed"
    wanted = hashlib.sha256(pom.encode()).hexdigest()
    jars = folder / "jars"
    if stamp.is_file() and stamp.read_text() == wanted:
        return jars
    debian_program("mvn", "maven")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "pom.xml").write_text(pom)
    print(f"fetching {title} with Maven", flush=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
    command = ["mvn", "--quiet", "--batch-mode", "--file", str(folder / "pom.xml"), *goal]
    _do(command, f"fetching the jars of {title} failed")
    stamp.write_text(wanted)
    return jars


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
    """Servers lie in sbin, which is not on everybody's PATH."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def _do(command: Sequence[str], failure: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
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
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").strip().splitlines()[-5:]
        raise Unavailable(f"{failure}, {command[0]} said: {' | '.join(lines) or 'nothing'}")


def installed(python: str, packages: Sequence[str]) -> dict[str, str]:
    """The versions that an environment has of some packages."""
    code = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]), sep='\\n')"
    command = [python, "-c", code, *packages]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(packages, told, strict=True))


def version_of(*command: str) -> str:
    """The first number with a dot in what a program says of itself."""
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"\d+\.[\d.]*\d", told.stdout + told.stderr)
    return found[0] if found else "unknown"
