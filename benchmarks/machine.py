"""Facts about the machine and the software that a figure is worth nothing without."""

import os
import platform
import subprocess
from pathlib import Path

from benchmarks.programs import ROOT


def facts() -> dict[str, str]:
    """What the machine is, and how busy it was with other things before the run."""
    return {
        "processor": _line_of("/proc/cpuinfo", "model name"),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "commit": commit(),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def _line_of(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "unknown"


def commit() -> str:
    """Of the tree that is measured."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return result.stdout.strip()
