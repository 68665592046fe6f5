"""`make registrations`: registrars in several processes compete on a real ZooKeeper, and are killed.

Sessions end at random, processes are killed and started again; --calm leaves them alone. What each
registrar was told stands in a file by then. At the end the registry has to agree with all of it: no id
given twice, no schema with two ids, no live version that cannot read those before it.
"""

import argparse
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from folkmoot.console.running.embedded import EmbeddedZooKeeper, ZooKeeperConfig
from folkmoot.coordination.connector import connect
from folkmoot.coordination.schemas import lookups
from folkmoot.coordination.schemas.names import parse
from folkmoot.coordination.zookeeper.execute import execute_all
from folkmoot.coordination.zookeeper.kazoo_adapter import KazooSession
from folkmoot.protocol.errors import FolkmootError, IncompatibleSchema
from folkmoot.schemas.avro.compatibility import judge
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.contracts.backends import end_session

LEVEL = "BACKWARD_TRANSITIVE"
FIELDS = 6
EXPECTED = {
    *("VersionSoftDeleted", "VersionNotFound", "SubjectSoftDeleted"),
    *("SessionLost", "ZooKeeperUnreachable"),  # a slow call may lose one session after another
}


def schema(chance: random.Random, unique: str) -> str:
    """One of many: two fit each other unless a field has another type; half of them are like no other."""
    names = sorted(chance.sample(range(FIELDS), chance.randrange(4)))
    types = [chance.choice((("int", 0), ("string", ""))) for _ in names]
    fields: list[dict[str, Any]] = [{"name": "a", "type": "long"}]
    for name, (kind, default) in zip(names, types, strict=True):
        fields.append({"name": f"f{name}", "type": kind, "default": default})
    doc = {"doc": unique} if chance.random() < 0.5 else {}
    return json.dumps({"type": "record", "name": "R", "fields": fields, **doc})


# -- a process of registrars -----------------------------------------------------------------------


def work(address: str, seed: int, first: int, registrars: int, notes: Path, calm: bool) -> None:
    """Until it is killed."""
    logging.disable(logging.WARNING)  # that sessions are lost is what this is for
    sessions: list[KazooSession] = []

    def opened(session_timeout: float) -> KazooSession:
        sessions.append(connect(address, session_timeout))
        return sessions[-1]

    registry = SchemaRegistry(opened)
    noted = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for registrar in range(first, first + registrars):
        arguments = registry, random.Random(f"{seed} {registrar}"), registrar, noted, seed
        threading.Thread(target=register, args=arguments, daemon=True).start()
    chance = random.Random(seed)
    while True:
        time.sleep(chance.uniform(0.5, 2.0))
        if not calm and sessions:
            end_session(address, sessions[-1])


def register(
    registry: SchemaRegistry, chance: random.Random, registrar: int, noted: int, life: int
) -> None:
    for number in range(10**9):
        # Those whose subjects are the same are about equally far.
        subject = f"s-{registrar % 4}-{number // 2}-{life % 3}"
        text = schema(chance, f"{life} {registrar} {number}")
        try:
            found = registry.register(subject, text)
            line = {"subject": subject, "version": found.version, "id": found.id, "text": text}
            if chance.random() < 0.05:
                registry.delete_version(subject, found.version)
        except IncompatibleSchema:
            line = {"refused": subject}
        except FolkmootError as error:
            line = {"error": type(error).__name__}  # another one has deleted it
        os.write(noted, json.dumps(line).encode() + b"\n")


# -- all of them, and the end ----------------------------------------------------------------------


def compete(
    address: str,
    directory: Path,
    count: int,
    registrars: int,
    processes: int,
    calm: bool,
    seed: int,
) -> dict[str, Any]:
    """Have so many registrations made. → figures."""
    with SchemaRegistry(lambda timeout: connect(address, timeout, create=True)) as registry:
        registry.set_compatibility(LEVEL)
    chance = random.Random(seed)
    shares = [range(registrars)[i::processes] for i in range(processes)]
    running: list[subprocess.Popen[bytes]] = []
    kills = 0

    def start(process: int, life: int) -> subprocess.Popen[bytes]:
        first = sum(len(share) for share in shares[:process])
        command = [sys.executable, "-m", "tests.registrations", "--work", address]
        command += [str(life), str(first), str(len(shares[process]))]
        command += [str(directory / f"notes-{process}"), str(int(calm))]
        return subprocess.Popen(command)

    try:
        running = [start(process, seed) for process in range(processes)]
        while not made(directory):
            time.sleep(0.05)
        begun, before = time.monotonic(), made(directory)
        while made(directory) < count:
            time.sleep(0.2 if calm else chance.uniform(1.0, 4.0))
            if not calm:
                kills += 1
                process = chance.randrange(processes)
                running[process].kill()
                running[process].wait()
                running[process] = start(process, seed + kills)
        rate = (made(directory) - before) / (time.monotonic() - begun)
    finally:
        for each in running:
            each.kill()
            each.wait()
    return {"kills": kills, "registrations per second": round(rate)}


def made(directory: Path) -> int:
    """How many registrations were answered."""
    return sum(each.read_bytes().count(b'"id"') for each in directory.glob("notes-*"))


def verified(address: str, directory: Path) -> dict[str, int]:
    """What there is, after everything has been compared. Raises AssertionError."""
    lines = [
        json.loads(line)
        for each in directory.glob("notes-*")
        for line in each.read_bytes().splitlines()
        if line.endswith(b"}")
    ]
    told = [line for line in lines if "id" in line]
    errors = {line["error"] for line in lines if "error" in line}
    assert errors <= EXPECTED, errors
    session = connect(address, 10.0)
    with SchemaRegistry(session) as registry:
        names = registry.subjects(deleted=True)
        there = dict(
            zip(
                names, execute_all(session, map(lookups.subject_of, map(parse, names))), strict=True
            )
        )
        ids = {each.id for subject in there.values() for each in subject.versions}
        schemas = {number: registry.get(number) for number in ids}
        assert len({each.guid for each in schemas.values()}) == len(ids), "one schema, two ids"
        assert len({registry.resolved(each) for each in ids}) == len(ids), "one text, two ids"
        for line in told:
            version = {each.version: each for each in there[line["subject"]].versions}
            assert version[line["version"]].id == line["id"], line
        texts: dict[int, set[str]] = {}
        for line in told:
            texts.setdefault(line["id"], set()).add(line["text"])
        assert all(len(each) == 1 for each in texts.values()), "one id, two texts"
        assert all(texts[each] == {schemas[each].schema} for each in texts)
        for name, subject in there.items():
            live = [registry.resolved(each.id) for each in subject.live()]
            for number, text in enumerate(live):
                found = [each for each in judge(LEVEL, text, live[:number]) if not each.warning]
                assert not found, f"{name} at {number}: {found}"
    session.close()
    return {
        "registrations": len(told),
        "refused": sum("refused" in line for line in lines),
        "ids": len(ids),
        "subjects": len(there),
        "versions": sum(len(each.versions) for each in there.values()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.registrations", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--registrars", type=int, default=20)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--calm", action="store_true", help="no kills, no lost sessions")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--work", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.work:
        address, seed, first, registrars, notes, calm = given.work
        work(address, int(seed), int(first), int(registrars), Path(notes), calm == "1")
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with EmbeddedZooKeeper(directory / "zookeeper", ZooKeeperConfig()) as server:
            address = f"{server.address}/registrations"
            figures = compete(
                address,
                directory,
                given.count,
                given.registrars,
                given.processes,
                given.calm,
                given.seed,
            )
            figures |= verified(address, directory)
    print("figures " + json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
