"""The project's own files, as the tests about its shape see them."""

import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

# Which folder may import which: the architecture, in one table. Every folder may import itself.
CLIENT_FOLDERS = frozenset(
    {"protocol", "network", "coordination", "schemas", "producers", "consumers", "admin"}
)
MAY_IMPORT: dict[str, frozenset[str]] = {
    "protocol": frozenset(),
    "network": frozenset({"protocol"}),
    "coordination": frozenset({"protocol"}),
    "schemas": frozenset({"protocol", "coordination"}),
    "brokers": frozenset({"protocol", "network", "coordination"}),
    "producers": frozenset({"protocol", "network", "coordination", "schemas"}),
    "consumers": frozenset({"protocol", "network", "coordination", "producers", "schemas"}),
    "admin": frozenset({"protocol", "network", "coordination", "consumers"}),
    "metrics": frozenset({"protocol", "brokers", "producers", "consumers", "admin"}),
    "spark_apps": CLIENT_FOLDERS,
    "console": CLIENT_FOLDERS | {"brokers", "metrics", "spark_apps", "integration"},
    "integration": CLIENT_FOLDERS | {"brokers", "spark_apps", "console"},
}

# Which room of a folder may import which other rooms of the same folder. Files beside the rooms may be
# imported by all of them and import none of them, or are the row of the folder itself.
ROOMS: dict[str, frozenset[str]] = {
    "brokers/jobs": frozenset(),
    "brokers/storage/files": frozenset(),
    "brokers/storage": frozenset({"brokers/jobs", "brokers/storage/files"}),
    "brokers/storage/compaction": frozenset(
        {"brokers/jobs", "brokers/storage", "brokers/storage/files"}
    ),
    "brokers/controller": frozenset(),
    "brokers/replication": frozenset({"brokers/jobs", "brokers/storage", "brokers/storage/files"}),
    "brokers/server": frozenset(
        {
            "brokers/jobs",
            "brokers/storage",
            "brokers/storage/files",
            "brokers/storage/compaction",
            "brokers/replication",
            "brokers/controller",
        }
    ),
    "protocol/process": frozenset(),
    "protocol": frozenset({"protocol/process"}),
    "coordination/zookeeper": frozenset(),
    "coordination": frozenset({"coordination/zookeeper"}),
    "coordination/cluster": frozenset({"coordination", "coordination/zookeeper"}),
    "coordination/groups": frozenset({"coordination", "coordination/zookeeper"}),
    "coordination/schemas": frozenset({"coordination", "coordination/zookeeper"}),
    "consumers/assignors": frozenset(),
    "consumers": frozenset({"consumers/assignors"}),
    "consumers/records": frozenset({"consumers"}),
    "consumers/group": frozenset({"consumers", "consumers/assignors"}),
    "consumers/fetch": frozenset({"consumers", "consumers/records"}),
    "consumers/offsets": frozenset({"consumers", "consumers/fetch", "consumers/records"}),
    "consumers/client": frozenset(
        {
            "consumers",
            "consumers/assignors",
            "consumers/records",
            "consumers/group",
            "consumers/fetch",
            "consumers/offsets",
        }
    ),
    "console": frozenset(),
    "console/options": frozenset({"console"}),
    "console/cluster": frozenset({"console", "console/options"}),
    "console/running": frozenset({"console", "console/options", "console/cluster", "console/demo"}),
    "console/records/formats": frozenset({"console", "console/options"}),
    "console/records": frozenset({"console", "console/options", "console/records/formats"}),
    "console/monitoring": frozenset({"console", "console/options", "console/cluster"}),
    "console/schema": frozenset({"console", "console/options"}),
    "console/demo": frozenset({"console", "console/options", "console/running", "console/spark"}),
    "console/spark": frozenset({"console", "console/options", "console/running"}),
    "schemas/avro": frozenset(),
    "schemas/registry": frozenset({"schemas/avro"}),
    "schemas/values": frozenset({"schemas/avro", "schemas/registry"}),
    "schemas/columns": frozenset({"schemas/avro", "schemas/registry", "schemas/values"}),
    "schemas/rest": frozenset({"schemas/avro", "schemas/registry"}),
    "spark_apps/options": frozenset(),
    "spark_apps/offsets": frozenset({"spark_apps/options"}),
    "spark_apps/tasks": frozenset({"spark_apps/options", "spark_apps/offsets"}),
    "spark_apps/typed": frozenset({"spark_apps/options", "spark_apps/tasks"}),
    "spark_apps/sink": frozenset({"spark_apps/options", "spark_apps/tasks", "spark_apps/typed"}),
    "spark_apps/stream": frozenset(
        {"spark_apps/options", "spark_apps/offsets", "spark_apps/tasks"}
    ),
    "spark_apps": frozenset(
        {
            "spark_apps/options",
            "spark_apps/offsets",
            "spark_apps/tasks",
            "spark_apps/typed",
            "spark_apps/sink",
            "spark_apps/stream",
        }
    ),
}

# Libraries that one folder hides from all others.
ONLY_IN = {"zmq": "network", "kazoo": "coordination"}


@cache
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@cache
def project_files() -> tuple[Path, ...]:
    """What git has or would take, without what it ignores; links are left out."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = {name for name in listing.stdout.decode().split("\0") if name}
    paths = (ROOT / name for name in sorted(names))
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


def python_files() -> list[Path]:
    return [path for path in project_files() if path.suffix in (".py", ".pyi")]


def is_test(path: Path) -> bool:
    """Whether a file lives only while tests run, wherever it lies."""
    return path.name.startswith("test_") or path.name == "conftest.py"


def code_folder(path: Path) -> str | None:
    """The folder of the table that a file belongs to, or None outside of them."""
    first = path.relative_to(ROOT).parts[0]
    return first if first in MAY_IMPORT else None
