"""The wheel of ZooKeeper's jars: where it is installed nobody needs PySpark, also for TLS."""

import os
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from folkmoot.admin.admin import Admin
from folkmoot.console.running.embedded import EmbeddedZooKeeper, ZooKeeperConfig
from folkmoot.console.running.java import find_java
from tests.certificates import make_certificate
from tests.sites import make_site
from tests.tree import ROOT, project_files

pytestmark = pytest.mark.slow

LARGEST = 12_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make zookeeper-wheel` does, of a copy."""
    here = tmp_path_factory.mktemp("zookeeper-wheel")
    for path in project_files():
        if path.is_relative_to(ROOT / "wheels" / "zookeeper"):
            copy = here / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist")
    command = [sys.executable, "-m", "pip", "wheel", *options, "./wheels/zookeeper"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (here / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def jars(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / "folkmoot_zookeeper" / "jars"


def test_the_wheel_is_small_and_has_zookeepers_version_and_the_licences(wheel: Path) -> None:
    assert wheel.stat().st_size < LARGEST
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    version = wheel.name.split("-")[1]
    assert f"folkmoot_zookeeper/jars/zookeeper-{version}.jar" in names
    licences = {name.rpartition("/")[2] for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "LICENSE-slf4j.txt", "NOTICE"}


FINDS = """
from importlib.util import find_spec
from folkmoot.console.running.java import zookeeper_classpath
assert find_spec("pyspark") is None
print(zookeeper_classpath())
"""


def test_dev_runs_on_it_in_an_environment_that_has_nothing_else(
    wheel: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "venv"
    venv.create(environment)
    (site,) = environment.glob("lib/python*/site-packages")
    make_site(site)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        wanted = {site / name for name in archive.namelist() if name.endswith(".jar")}
    python = str(environment / "bin" / "python")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"JAVA_HOME": str(find_java().home)}
    found = subprocess.check_output([python, "-c", FINDS], env=variables, text=True)
    assert {Path(jar) for jar in found.strip().split(os.pathsep)} == wanted

    command = [python, "-m", "folkmoot.console.main", "dev", "--brokers", "1", "--data", "data"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True
    ) as dev:
        assert dev.stdout is not None
        lines = list(iter(dev.stdout.readline, "Ctrl-C stops all of it.\n"))
        with Admin(zookeeper=lines[0].split()[1]) as admin:
            admin.create_topic("orders", 1)
        dev.send_signal(signal.SIGINT)
    assert dev.returncode == 0


def test_it_serves_tls(jars: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    options = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "client.portUnification": "true",
        "ssl.keyStore.location": both,
        "ssl.clientAuth": "none",
    }
    config = ZooKeeperConfig(
        jars=jars,
        fsync=False,
        java_options=tuple(f"-Dzookeeper.{name}={value}" for name, value in options.items()),
    )
    with EmbeddedZooKeeper(tmp_path / "data", config) as server:
        client = KazooClient(server.address, use_ssl=True, ca=str(certificate))
        client.start()
        try:
            client.create("/secret", b"yes")
            assert client.get("/secret")[0] == b"yes"
        finally:
            client.stop()
            client.close()
