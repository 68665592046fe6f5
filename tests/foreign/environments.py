"""Makes the foreign clients' environments in build/foreign: `python -m tests.foreign.environments`.

Each is what its package manager makes of the files beside this one, versions pinned in them; it is made
anew when they change. Without its tool, or when it cannot be made, its tests are skipped, or fail where
FOLKMOOT_REQUIRE_FOREIGN=1 demands them.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tests.tree import ROOT

REQUIRED: Final = "FOLKMOOT_REQUIRE_FOREIGN"
BUILT: Final = ROOT / "build" / "foreign"
SOURCES: Final = Path(__file__).parent
PATIENCE: Final = 400.0

Command = Sequence[str]

# Named in full: newer ones of Maven's plugins would be looked for.
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_COPY: Final = f"{_PLUGIN}:copy-dependencies"
_UNPACK: Final = f"{_PLUGIN}:unpack-dependencies"


class Environment(NamedTuple):
    """Commands that make it, run in a copy of its folder; programs are those that run in it, by client."""

    tools: tuple[str, ...]
    commands: tuple[Command, ...]
    programs: dict[str, Command]


ENVIRONMENTS: Final[dict[str, Environment]] = {
    "python": Environment(
        (),
        (
            (sys.executable, "-m", "venv", "venv"),
            (
                *("venv/bin/python", "-m", "pip", "install", "--quiet"),
                *("--disable-pip-version-check", "--requirement", "requirements.txt"),
            ),
        ),
        {
            "confluent-kafka": ("venv/bin/python", "confluent.py", "URL", "sync"),
            "confluent-kafka, asyncio": ("venv/bin/python", "confluent.py", "URL", "async"),
            "python-schema-registry-client": ("venv/bin/python", "registry_client.py", "URL"),
        },
    ),
    "node": Environment(
        ("node", "npm"),
        (
            # No install scripts: they would fetch binaries from elsewhere.
            (
                *("npm", "install", "--ignore-scripts", "--no-package-lock", "--silent"),
                *("--no-audit", "--no-fund", "--no-update-notifier"),
            ),
        ),
        {
            "@kafkajs/confluent-schema-registry": ("node", "kafkajs.js", "URL"),
            "@confluentinc/schemaregistry": ("node", "confluentinc.js", "URL"),
        },
    ),
    "java": Environment(
        ("java", "javac", "mvn"),
        (
            ("mvn", "--quiet", "--batch-mode", _COPY, "-DoutputDirectory=jars"),
            ("javac", "-cp", "jars/*", "-d", "classes", "Spring.java"),
        ),
        {
            "spring-cloud-schema-registry-client": (
                *("java", "-XX:TieredStopAtLevel=1", "-cp", "classes:jars/*", "Spring", "URL"),
            )
        },
    ),
    # No program of its own: a Spark session of this environment takes the jars.
    "spark": Environment(
        ("java", "mvn"), (("mvn", "--quiet", "--batch-mode", _COPY, "-DoutputDirectory=jars"),), {}
    ),
    # A server.
    "apicurio": Environment(
        ("java", "mvn"),
        (("mvn", "--quiet", "--batch-mode", _UNPACK, "-DoutputDirectory=server"),),
        {},
    ),
    "go": Environment(
        ("go",),
        (("go", "mod", "tidy"), ("go", "build", "-o", "franz", ".")),
        {"franz-go/pkg/sr": ("./franz", "URL")},
    ),
}


def directory_of(name: str) -> Path:
    """Where an environment is, or is to be: another directory for other files."""
    content = hashlib.sha256(repr((ENVIRONMENTS[name], sys.version_info[:2])).encode())
    for path in sorted((SOURCES / name).iterdir()):
        if path.is_file():
            content.update(path.name.encode() + path.read_bytes())
    return BUILT / f"{name}-{content.hexdigest()[:16]}"


def why_not(name: str) -> str | None:
    """Why tests cannot use an environment."""
    if (directory_of(name) / "made").exists():
        return None
    return f"the environment {name} is not there: python -m tests.foreign.environments"


def make(name: str) -> str | None:
    """Make an environment unless it is there. → why it cannot be made, if so."""
    made, environment = directory_of(name), ENVIRONMENTS[name]
    if why_not(name) is None:
        return None
    missing = [tool for tool in environment.tools if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    for old in BUILT.glob(f"{name}-*"):
        shutil.rmtree(old)
    shutil.copytree(SOURCES / name, made, ignore=shutil.ignore_patterns("__pycache__"))
    for command in environment.commands:
        ended = subprocess.run(
            command, cwd=made, timeout=PATIENCE, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if ended.returncode:
            return f"{' '.join(command)} ended with {ended.returncode}: {ended.stdout[-2000:]}"
    (made / "made").touch()
    return None


def main() -> int:
    """Make all, two at a time. → an exit code."""
    failed = 0
    BUILT.mkdir(parents=True, exist_ok=True)

    def timed(name: str) -> tuple[str | None, float]:
        begun = time.monotonic()
        return make(name), time.monotonic() - begun

    with ThreadPoolExecutor(2) as pool:
        for name, (why, seconds) in zip(ENVIRONMENTS, pool.map(timed, ENVIRONMENTS), strict=True):
            print(f"foreign clients, {name}: {why or f'there ({seconds:.0f} s)'}", flush=True)
            failed += why is not None
    return 1 if failed and os.environ.get(REQUIRED) else 0


if __name__ == "__main__":
    sys.exit(main())
