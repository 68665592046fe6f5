"""`folkmoot topic` against a real ZooKeeper; no broker is needed but for creating."""

import io
import json
from collections.abc import Iterator

import pytest

from folkmoot.console.main import main
from folkmoot.console.options import cluster as options
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.coordination import brokers
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper


@pytest.fixture
def cluster(chroot: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A connect string, also in the environment, under which two brokers are registered."""
    monkeypatch.setenv(options.ENVIRONMENT, chroot)
    session = connect(chroot, 60.0)
    for number in (1, 2):
        execute(
            session, brokers.register(number, Registration({"client": f"host:{number}"}, "n", "d"))
        )
    yield chroot
    session.close()


def test_topics_are_created_listed_described_and_deleted(
    cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "create", "flights", "--partitions", "2"]) == 0
    assert capsys.readouterr().out == "created topic flights with 2 partitions\n"

    assert main(["topic", "list", "-o", "json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["topic"], listed["partitions"]) == ("flights", 2)

    assert main(["topic", "describe", "flights", "-o", "json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert [each["partition"] for each in described] == [0, 1]
    assert sorted(each["replicas"] for each in described) == [[1], [2]]
    assert {each["leader"] for each in described} == {None}, "no controller has written a state"

    assert main(["topic", "delete", "flights", "--yes"]) == 0
    assert capsys.readouterr().out == "deleted topic flights\n"
    assert main(["topic", "list"]) == 0
    assert capsys.readouterr().out == "topic  partitions  id\n"


def test_new_partitions_have_leaders_when_the_command_ends(
    shared_cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--zookeeper", shared_cluster.zookeeper]
    for words in (["create", "led"], ["alter", "led", "--yes"]):
        count = 20 if words[0] == "create" else 40
        assert main(["topic", *words, "--partitions", str(count), *at]) == 0
        capsys.readouterr()
        assert main(["topic", "describe", "led", "-o", "json", *at]) == 0
        described = json.loads(capsys.readouterr().out)
        assert len(described) == count
        assert [each["partition"] for each in described if each["leader"] is None] == []
    assert main(["topic", "delete", "led", "--yes", *at]) == 0


def test_a_topics_own_options_are_given_changed_and_taken_back(
    cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", "retention=60", "--config", "segment_bytes=4KiB"]
    assert main(["topic", "create", "flights", *words]) == 0
    capsys.readouterr()
    change = ["retention=none", "--unset", "segment_bytes", "flush_interval=10s"]
    assert main(["topic", "config", "flights", *change, "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(each["option"], each["value"]) for each in shown if each["source"] == "topic"] == [
        ("retention", "none"),
        ("flush_interval", "10s"),
    ]
    assert main(["topic", "config", "flights", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown
    for wrong, sentence in (
        ("retentoin=1", "did you mean 'retention'"),
        ("retention=soon", "a number of seconds"),
        ("retention", "write NAME=VALUE"),
        ("retention-bytes=1", "did you mean 'retention_bytes'"),
        ("compression=zstd", "known are segment_bytes"),
    ):
        assert main(["topic", "config", "flights", wrong]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["topic", "config", "nothing", "retention=1"]) == 1
    assert main(["topic", "config", "flights", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown


def test_options_that_do_not_go_with_those_a_topic_has_are_refused(
    cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brokers would not follow, and nobody would be told."""
    assert main(["topic", "create", "flights", "--config", "min_compaction_lag=10"]) == 0
    for wrong, sentence in (
        (["max_compaction_lag=5"], "is below min_compaction_lag"),
        (["retention=9", "--unset", "retention"], "given and taken back"),
        (["--unset", "retentoin"], "did you mean 'retention'"),
    ):
        capsys.readouterr()
        assert main(["topic", "config", "flights", *wrong]) == 2
        assert sentence in capsys.readouterr().err
    change = ["max_compaction_lag=5", "--unset", "min_compaction_lag"]
    assert main(["topic", "config", "flights", *change]) == 0
    assert main(["topic", "config", "flights", "--unset", "retention"]) == 0


def test_deleting_asks_for_the_name(
    cluster: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["topic", "create", "t"])
    for typed, code in (("", 4), ("yes\n", 4), ("t\n", 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert main(["topic", "delete", "t"]) == code
        asked, _, rest = capsys.readouterr().err.partition("Type its name to continue: ")
        assert asked
        # What is said then stands in a line of its own: a terminal shows what was typed itself.
        assert rest.startswith("\n") == (typed == "")


@pytest.mark.parametrize("option", ["--partitions", "--replicas", "--min-in-sync"])
def test_a_topic_of_nothing_is_wrong_usage(
    cluster: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "create", "t", option, "0"]) == 2
    assert option.strip("-").replace("-", "_") in capsys.readouterr().err.replace("-", "_")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["create", "a/b"], 2, "topic name 'a/b' is not allowed"),
        (["describe", "missing"], 1, "topic missing does not exist"),
        (["delete", "missing"], 1, "topic missing does not exist"),
        (["delete", "missing", "--yes"], 1, "topic missing does not exist"),
        (["list", "--zookeeper", "127.0.0.1:1", "--timeout", "0.3"], 3, "127.0.0.1:1"),
        (["list", "--zookeeper", "no spaces"], 2, "no spaces"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(
    cluster: str,
    words: list[str],
    code: int,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["topic", *words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("folkmoot: ")
    assert sentence in line


def test_a_topic_needs_a_live_broker_and_a_name_of_its_own(
    chroot: str, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "create", "t"]) == 0
    assert main(["topic", "create", "t"]) == 1
    assert "topic t exists already" in capsys.readouterr().err
    session = connect(f"{chroot}/empty", 5.0, create=True)
    session.close()
    assert main(["topic", "create", "u", "--zookeeper", f"{chroot}/empty"]) == 3
    assert "no broker is alive" in capsys.readouterr().err


def test_a_zookeeper_that_falls_silent_is_an_error_in_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ensemble = MemoryZooKeeper()

    def connect(timeout: float) -> MemorySession:
        session = ensemble.connect(timeout)
        ensemble.suspend(session)
        return session

    monkeypatch.setenv(options.ENVIRONMENT, "silent:2181")
    monkeypatch.setattr(options.Cluster, "connect", lambda cluster: connect)
    for words in (["list"], ["describe", "t"], ["create", "t"], ["delete", "t", "--yes"]):
        assert main(["topic", *words, "--timeout", "0.05"]) == 3
        assert "ZooKeeper did not answer within 0.05 s" in capsys.readouterr().err
