"""What large buffers cost that come and go."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from folkmoot.network.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators decide otherwise")
def test_blocks_that_come_and_go_are_not_taken_from_the_kernel_each_time() -> None:
    assert faults("keep") < 100 < 500 < faults("as it is")
