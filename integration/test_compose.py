"""`compose.yaml` as a user brings it up: ZooKeepers, brokers, a registry, and records in three replicas."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.console.running.processes import FOLKMOOT
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.integration.containers import broker_image, free_ports, zookeeper_image
from folkmoot.producers.producer import Producer
from tests.tree import ROOT
from tests.waiting import eventually

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

PORTS = [
    f"{kind}_PORT_{number}" for kind in ("ZOOKEEPER", "BROKER", "METRICS") for number in (1, 2, 3)
]
PORTS.append("REGISTRY_PORT")
UP = 120.0
RECORDS = 1000


def compose_command() -> list[str]:
    """Docker's plugin, or the program that came before it."""
    plugin = ["docker", "compose"]
    if subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode == 0:
        return plugin
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("neither docker compose nor docker-compose is installed")
    return [program]


@dataclass
class Project:
    """What `compose.yaml` brings up, under a name and ports of its own."""

    environment: dict[str, str]
    command: list[str]

    @property
    def zookeeper(self) -> str:
        ports = [self.environment[name] for name in PORTS[:3]]
        return ",".join(f"127.0.0.1:{port}" for port in ports) + "/folkmoot"

    def compose(self, *words: str) -> str:
        result = subprocess.run(
            [*self.command, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    def health(self) -> dict[str, str]:
        """Service → what its healthcheck says."""
        statuses = {}
        for container in self.compose("ps", "--quiet").split():
            form = '{{index .Config.Labels "com.docker.compose.service"}} {{.State.Health.Status}}'
            words = ["docker", "inspect", "--format", form, container]
            answer = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            service, status = answer.split()
            statuses[service] = status
        return statuses

    def status(self, *words: str) -> int:
        """The exit code of `folkmoot cluster status`, as the user has it."""
        command = [*FOLKMOOT, "cluster", "status", "--zookeeper", self.zookeeper, *words]
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode


@pytest.fixture
def project() -> Iterator[Project]:
    name = f"folkmoot-{uuid4().hex[:8]}"
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    images = {
        "FOLKMOOT_BROKER_IMAGE": broker_image(),
        "FOLKMOOT_ZOOKEEPER_IMAGE": zookeeper_image(),
    }
    file = str(Path(ROOT) / "compose.yaml")
    command = [*compose_command(), "--project-name", name, "--file", file]
    instance = Project({**os.environ, **ports, **images}, command)
    try:
        yield instance
    finally:
        instance.compose("down", "--volumes", "--timeout", "1")


def test_the_compose_file_brings_up_a_cluster_that_survives_a_broker(project: Project) -> None:
    project.compose("up", "--detach", "--no-build")
    eventually(lambda: list(project.health().values()) == ["healthy"] * 7, UP)
    assert project.status() == 0
    for port in (project.environment[name] for name in PORTS if name.startswith("METRICS")):
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as answer:
            assert b"folkmoot_broker_unclean_leader_elections_total 0.0" in answer.read()
    with Admin(zookeeper=project.zookeeper) as admin:
        admin.create_topic("orders", 3)
    eventually(lambda: project.status("--broker", "3") == 0, UP)
    values = [b"%d" % number for number in range(RECORDS)]
    with Producer(zookeeper=project.zookeeper, acks="all", delivery_timeout=60.0) as producer:
        for value in values[: RECORDS // 2]:
            producer.send("orders", value)
        producer.flush()
        project.compose("kill", "broker-1")
        # What it led is led by another once its session has ended: its guardian ends with the container.
        deliveries = [producer.send("orders", value) for value in values[RECORDS // 2 :]]
        for delivery in deliveries:
            delivery.result(60.0)
    assert project.status() == 5
    project.compose("up", "--detach", "--no-build")
    eventually(lambda: project.status() == 0, UP)
    eventually(lambda: project.health().get("broker-1") == "healthy", UP)
    found: list[bytes | None] = []
    with Consumer(zookeeper=project.zookeeper, group="g", topics=["orders"]) as consumer:

        def all_read() -> bool:
            found.extend(record.value for record in consumer.poll(0.5))
            return len(found) >= RECORDS

        eventually(all_read, 60.0)
    assert sorted(found, key=str) == sorted(values, key=str)
    with Admin(zookeeper=project.zookeeper) as admin:
        assert admin.topics() == ["orders"]
