"""Which tests can run here. Tests that need Docker run when an engine answers.

With FOLKMOOT_REQUIRE_DOCKER=1 a test that needs Docker and does not run is a failure, whatever it
says as its reason: a run that was to prove something cannot pass by leaving it out.
"""

import gc
import os
import signal
import subprocess
from collections.abc import Generator

import pytest

DOCKER_ANSWER_TIMEOUT = 10.0


def pytest_configure() -> None:
    # A shell has what it starts in the background ignore Ctrl-C, and children inherit that: those that
    # tests interrupt would never end.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    # A full collection would look through all that was imported, again and again.
    gc.collect()
    gc.freeze()


def docker_is_required() -> bool:
    return os.environ.get("FOLKMOOT_REQUIRE_DOCKER", "") not in ("", "0")


def why_no_docker() -> str | None:
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=DOCKER_ANSWER_TIMEOUT, check=False
        )
    except FileNotFoundError:
        return "Docker is not installed"
    except subprocess.TimeoutExpired:
        return f"no Docker engine answered within {DOCKER_ANSWER_TIMEOUT:g} s"
    return None if answer.returncode == 0 else "no Docker engine answers"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    in_need = [item for item in items if item.get_closest_marker("docker")]
    if not in_need or docker_is_required():
        return
    reason = why_no_docker()
    if reason is not None:
        for item in in_need:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and docker_is_required() and item.get_closest_marker("docker"):
        report.outcome = "failed"
        report.longrepr = f"FOLKMOOT_REQUIRE_DOCKER is set, but: {report.longrepr}"
    return report
