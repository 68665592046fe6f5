"""Every command with brokers dead or stopped, and with ZooKeeper dead, stopped or unreachable.

Held of each: what it says, its exit code, that it ends in time, and that it does not burn a processor while
it waits. Commands that go on until they are told to stop are held to where they begin; `demo` and `spark`
make clusters of their own, and are not among them, nor are those that look at files alone.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import click
import pytest

from folkmoot.admin.admin import Admin
from folkmoot.console.exit_codes import DEGRADED, FAILED, INCOMPLETE, OK, UNREACHABLE
from folkmoot.console.main import COMMANDS as FRONT
from folkmoot.console.main import cli
from folkmoot.console.options.cluster import ENVIRONMENT
from folkmoot.console.running.children import free_port
from folkmoot.console.running.embedded import ZooKeeperConfig
from folkmoot.console.running.processes import FOLKMOOT, EmbeddedCluster
from folkmoot.coordination import brokers
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from tests.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TIMEOUT: Final = 4.0
"""What is not to be had is waited for so long, where nobody answers."""
IN_CLUSTER: Final = 12.0
"""And so long where somebody is to say why, who may be kept for some seconds."""
PATIENCE: Final = 20.0
"""What is to be had; the machine may be busy."""
GRACE: Final = 5.0
MOST_CPU: Final = 2.0
AT_ONCE: Final = 20
START_UP: Final = (
    sys.executable,
    "-c",
    "import folkmoot.producers.producer, folkmoot.consumers.client.consumer, "
    "folkmoot.admin.admin, folkmoot.coordination.connector",
)
"""What a command does before it waits for anything."""


class Ended(NamedTuple):
    """How a process ended; seconds."""

    words: str
    code: int
    said: str
    took: float
    cpu: float


def ended(command: Sequence[str], environment: dict[str, str]) -> Ended:
    """Run it, with one line as its input."""
    began = time.monotonic()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):
            child.stdin.write("line\n")
            child.stdin.close()
        said = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    took, cpu = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    return Ended(" ".join(command[3:]), child.returncode, said, took, cpu)


NO_LEADER: Final = "{dead} has no leader: it waits for broker 3"
COMMANDS: Final[dict[str, tuple[int, str]]] = {
    "topic create new-{n} --replicas 1": (OK, "created topic new-{n}"),
    "topic config t1": (OK, "option"),
    "topic list": (OK, "t3 "),
    "topic describe t1 --leaderless": (OK, "leader epoch"),
    "topic offsets t1": (UNREACHABLE, NO_LEADER),
    "topic delete spare-{n} --yes": (OK, "deleted topic spare-{n}"),
    "topic alter grow-{n} --partitions 4 --yes": (OK, "grow-{n} has 4 partitions now"),
    "topic delete-records t1 --before {number}=1": (UNREACHABLE, NO_LEADER),
    "topic delete-records t1 --before-time 2026-01-31T12:00Z": (UNREACHABLE, "has no leader"),
    "topic elect t1": (OK, "elected leaders of 0 partitions"),
    "topic reassign t3": (OK, "in sync"),
    "topic reassign t1 --brokers 1": (OK, "nothing was moved"),
    "group list": (OK, "g "),
    "group describe g": (OK, NO_LEADER),
    "group members g": (OK, "revoke timeout"),
    "group events g": (OK, "joined"),
    "group export g": (OK, "t1,{number},1,"),
    "group reset g --topic t1 --to-earliest": (UNREACHABLE, NO_LEADER),
    "group reset g --topic t1 --by-duration 1h": (UNREACHABLE, NO_LEADER),
    "group import other {directory}/offsets.csv": (UNREACHABLE, NO_LEADER),
    "group delete gone-{n} --yes": (OK, "deleted group gone-{n}"),
    "group delete-offsets less-{n} --topic t1 --yes": (OK, "deleted the offsets of group less-{n}"),
    "log sizes": (OK, "log end"),
    "log orphans {directory}/broker-1": (OK, "topic id"),
    "cluster status": (DEGRADED, "leaderless"),
    "cluster events": (OK, "broker 3"),
    "broker list": (OK, "out of sync"),
    "broker stop 3": (UNREACHABLE, "no broker 3 is registered"),
    "broker drain 3": (FAILED, "broker 3 is the last in-sync replica of"),
    "top --once": (OK, "leaderless, "),
    "schema list": (OK, "BACKWARD"),
    "schema versions s": (OK, "references"),
    "schema get s": (OK, "double"),
    "schema register new-{n} {directory}/s.avsc": (OK, "new-{n} version 1"),
    "schema check s {directory}/s.avsc": (OK, "s takes it"),
    "schema diff s {directory}/s.avsc": (OK, "for readers"),
    "schema compat s": (OK, "BACKWARD"),
    "schema mode s": (OK, "READWRITE"),
    "schema export {directory}/exported-{n}": (OK, "copied"),
    "schema import {directory}/exported.json": (OK, "copied 0 versions"),
    "schema delete old-{n} --yes": (OK, "deleted old-{n}"),
    "produce t1 --partition {number}": (UNREACHABLE, NO_LEADER),
    "produce t3": (OK, "produced 1 record"),
    "consume t1": (INCOMPLETE, NO_LEADER),
    "consume t3": (OK, "line"),
    "consume t1 --group fresh-{n}": (INCOMPLETE, NO_LEADER),
}
"""What each says, and its exit code, when one broker is dead, which alone has {dead} of topic t1; t3 has
three replicas, of which two have to be in sync."""
WITH_TWO_GONE: Final = {
    "produce t3": (
        UNREACHABLE,
        f"1 record for t3-0 not acknowledged within {IN_CLUSTER:g} s; last error: ",
    )
}
ENDLESS: Final = (
    "broker --broker-id 9 --data {directory}/broker-9",
    "controller",
    "dev --data {directory}/dev",
    "exporter --metrics-port 0",
)
"""Without ZooKeeper they do not begin."""
LOCAL: Final = {
    *("completion", "demo", "registry", "spark"),
    *("log dump", "log verify", "log inventory", "topic restore", "cluster restore"),
}
"""These need no cluster, make one of their own, or begin without one: the registry's test is the last. What
reads brokers' directories looks at those first (tests/console/test_lost_zookeeper.py)."""
TWO_WAYS: Final = ("produce t1", "consume t1")
"""These can do without ZooKeeper: `--bootstrap`."""


class Scene(NamedTuple):
    """A cluster, and what stands for the names in COMMANDS."""

    cluster: EmbeddedCluster
    names: dict[str, str]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("commands")
    with EmbeddedCluster(
        directory, 3, ZooKeeperConfig(fsync=False), session_timeout=10.0
    ) as cluster:
        at = {ENVIRONMENT: cluster.zookeeper}

        def do(words: str) -> str:
            found = ended([*FOLKMOOT, *words.split()], at)
            assert found.code == OK, found
            return found.said

        with Admin(zookeeper=cluster.zookeeper) as admin:
            admin.create_topic("t1", 3, replicas=1)
            admin.create_topic("t3", 1, replicas=3)
            for name in ("spare-0", "spare-1", "grow-0", "grow-1"):
                admin.create_topic(name, 1, replicas=1)
        for each in range(3):
            do(f"produce t1 --partition {each}")
        do("produce t3")
        do("consume t1 --group g")
        do(f"group export g --file {directory}/offsets.csv")
        for name in ("gone-0", "gone-1", "less-0", "less-1"):
            do(f"group import {name} {directory}/offsets.csv --execute")
        (directory / "s.avsc").write_text('"double"')
        for name in ("s", "old-0", "old-1"):
            do(f"schema register {name} {directory}/s.avsc")
        do(f"schema export {directory}/exported.json --prefix s")
        rows = [line.split() for line in do("topic describe t1").splitlines()]
        (number,) = (row[0] for row in rows if row[1] == "3")
        yield Scene(
            cluster, {"directory": str(directory), "number": number, "dead": f"t1-{number}"}
        )


def hold(
    cases: dict[str, tuple[int, str]], environment: dict[str, str], timeout: float = TIMEOUT
) -> None:
    """Run all side by side; how long a start takes, and how busy it is, is measured beside them."""
    limits = [
        timeout if code in (UNREACHABLE, INCOMPLETE) else PATIENCE for code, _ in cases.values()
    ]
    commands = [
        [*FOLKMOOT, *words.split(), "--timeout", f"{limit:g}"]
        for words, limit in zip(cases, limits, strict=True)
    ]
    for place in (len(commands), len(commands) // 2, 0):
        commands.insert(place, list(START_UP))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda command: ended(command, environment), commands))
    starts = [each for each in found if not each.words]
    took, cpu = max(each.took for each in starts), max(each.cpu for each in starts)
    wrong = []
    of_commands = [each for each in found if each.words]
    for each, limit, (code, said) in zip(of_commands, limits, cases.values(), strict=True):
        if each.code != code or said not in each.said or "Traceback" in each.said:
            wrong.append(f"{each}: not exit code {code} and {said!r}")
        if each.took > limit + GRACE + 3 * took or each.cpu > MOST_CPU + cpu:
            wrong.append(f"{each}: too long, or too busy (a start: {took:.1f} s, CPU {cpu:.1f} s)")
    assert not wrong, "\n".join(wrong)


def hold_in_cluster(scene: Scene, n: int, others: dict[str, tuple[int, str]]) -> None:
    names = {**scene.names, "n": str(n)}
    cases = {
        words.format_map(names): (code, said.format_map(names))
        for words, (code, said) in {**COMMANDS, **others}.items()
    }
    hold(cases, {ENVIRONMENT: scene.cluster.zookeeper}, IN_CLUSTER)


def without(scene: Scene, address: str, *, bootstrap: bool) -> dict[str, tuple[int, str]]:
    """What each command says where nobody answers, be it ZooKeeper or a broker."""
    names = {**scene.names, "n": "0"}
    said = f"no ZooKeeper server answers at {address} within {TIMEOUT:g} s"
    cases = {
        f"{words.format_map(names)} --zookeeper {address}": (UNREACHABLE, said)
        for words in (*COMMANDS, *ENDLESS)
    }
    for words in TWO_WAYS if bootstrap else ():
        said = f"no broker of bootstrap={address} answers"
        cases[f"{words} --bootstrap {address}"] = UNREACHABLE, said
    return cases


def test_every_command_is_among_those_that_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    run = {" ".join(each.split()[:count]) for each in (*COMMANDS, *ENDLESS) for count in (1, 2)}
    for name in FRONT.keys() - LOCAL:
        _, command, _ = cli.resolve_command(click.Context(cli), [name])
        actions = command.commands if isinstance(command, click.Group) else ()
        for words in [f"{name} {action}" for action in actions] or [name]:
            assert words in run | LOCAL


def test_every_command_with_a_port_that_nobody_listens_on_and_one_that_says_nothing(
    scene: Scene,
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as silent:
        cases = without(scene, f"127.0.0.1:{free_port()}", bootstrap=True)
        cases |= without(scene, f"127.0.0.1:{silent.getsockname()[1]}", bootstrap=True)
        hold(cases, {})


def test_every_command_with_brokers_dead_and_stopped_and_then_zookeeper(scene: Scene) -> None:
    """In this order, since what is killed is not started again."""
    cluster = scene.cluster
    assert cluster.server is not None
    session = connect(cluster.zookeeper, 10.0)

    def await_end_of(broker: int) -> None:
        eventually(lambda: broker not in execute(session, brokers.live()), 60.0)

    cluster.brokers[2].kill()
    await_end_of(3)
    hold_in_cluster(scene, 0, {})
    cluster.brokers[1].pause()
    await_end_of(2)
    hold_in_cluster(scene, 1, WITH_TWO_GONE)
    session.close()
    cluster.server.pause()
    try:
        hold(without(scene, cluster.zookeeper, bootstrap=False), {})
    finally:
        cluster.server.resume()
        cluster.brokers[1].resume()
    cluster.server.kill()
    # Its port refuses now, as one does at which nothing ever was, where all of them are run.
    some = list(without(scene, cluster.zookeeper, bootstrap=False).items())[::5]
    hold(dict(some), {})


def test_a_registry_without_zookeeper_says_so_and_ends_when_it_is_told_to() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        words = ["registry", "--port", "0", "--timeout", "2", "--zookeeper", address]
        with subprocess.Popen([*FOLKMOOT, *words], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            url = child.stdout.readline().removeprefix("registry at ").strip()
            try:
                for page in ("readyz", "subjects"):
                    began = time.monotonic()
                    with pytest.raises(HTTPError, match=r"50[03]") as told:
                        urlopen(f"{url}/{page}", timeout=PATIENCE)
                    assert time.monotonic() - began < PATIENCE / 2
                    assert "within 2 s" in told.value.read().decode()
                child.terminate()
                assert child.wait(PATIENCE) == OK
            finally:
                child.kill()
