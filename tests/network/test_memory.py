"""What large buffers cost that come and go."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
if sys.argv[1] == "client":
    from folkmoot.network.client import Connections
    Connections("test").close()
if sys.argv[1] == "server":
    from folkmoot.network.server import ServerSocket
    ServerSocket().close()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [b"x" * 500_000 for _ in range(10)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print([faults() for _ in range(5)][-1])
"""


def faults(how: str) -> int:
    """Of the fifth time that ten blocks are made, filled and freed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other allocators decide otherwise"
)


def test_blocks_that_come_and_go_are_not_taken_from_the_kernel_each_time() -> None:
    assert faults("server") < 100 < 500 < faults("nobody")


def test_a_client_leaves_the_allocator_of_its_process_as_it_is() -> None:
    assert faults("client") > 500
