"""`make mutants N=200 SEED=7`: changes the code by a little, N times, and tells which the tests did not see.

A mutant is one comparison, boolean, negation, sign or constant that is another one; each kind is drawn as
often as the others, from all code of FOLDERS, or of those that `--folders` names. It is tried in a copy of
the tree, with the tests of its own folder, those that mirror its room first, up to the first that fails.
What ends by a timeout is killed, too.

Each outcome is a line of the file STATE, which is not found out again as long as the code is the same:
ended and started again with the same seed, it goes on. A larger N adds to the mutants of a smaller one.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, Final

import msgspec

from tests.mutants.mutations import KINDS, Mutation, mutated, mutations

FOLDERS: Final = (
    *("protocol", "network", "brokers", "coordination", "producers", "consumers", "admin"),
)
TIMEOUT: Final = 600.0
_LEFT_OUT: Final = shutil.ignore_patterns(
    *(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", ".bench", ".chaos", "*.egg-info"),
)


class Outcome(msgspec.Struct, frozen=True):
    """A line of the state file. `by` is the test that failed first, or why there was none."""

    code: str
    path: str
    line: int
    start: int
    new: str
    killed: bool
    by: str


class Mutant(msgspec.Struct, frozen=True):
    path: str
    mutation: Mutation

    def __str__(self) -> str:
        old = " ".join(self.mutation.old.split())
        new = " ".join(self.mutation.new.split())
        return f"{self.path}:{self.mutation.line}: {self.mutation.kind}: {old!r} became {new!r}"


def sources(root: Path, folders: Sequence[str] = FOLDERS) -> dict[str, str]:
    """The code that is mutated, by its path."""
    files = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return {path.relative_to(root).as_posix(): path.read_text() for path in files}


def drawn(code: dict[str, str], seed: int) -> Iterator[Mutant]:
    """All mutants there can be, in the order that the seed gives them."""
    chance = random.Random(seed)
    found: dict[str, list[Mutant]] = {kind: [] for kind in KINDS}
    for path, source in code.items():
        for mutation in mutations(source):
            found[mutation.kind].append(Mutant(path, mutation))
    for mutants in found.values():
        chance.shuffle(mutants)
    while any(found.values()):
        yield found[chance.choice([kind for kind in KINDS if found[kind]])].pop()


def tests_of(root: Path, path: str) -> list[str]:
    """The test files of the folder that `path` is in: of its own name, of its room, then the others."""
    source = Path(path)
    folder = root / "tests" / source.parts[0]
    room = root / "tests" / source.parent

    def distance(test: Path) -> tuple[bool, bool, str]:
        return (source.stem not in test.stem, room not in test.parents, test.as_posix())

    found = sorted(folder.rglob("test_*.py"), key=distance)
    return [test.relative_to(root).as_posix() for test in found]


def run_tests(tree: Path, tests: Sequence[str], timeout: float) -> str:
    """The first test that failed, "" if none did, or what happened otherwise."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.setdefault("FOLKMOOT_SEED", "1")
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that what a test has started ends with it
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"no end within {timeout:g} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode == 0:
        return ""
    said = [
        line for line in output.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))
    ]
    return said[0].split(" - ")[0] if said else f"exit code {process.returncode}"


class Trees:
    """Copies of the tree, one for each mutant under way."""

    def __init__(self, root: Path, directory: Path, count: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for number in range(count):
            tree = directory / str(number)
            shutil.copytree(root, tree, symlinks=True, ignore=_LEFT_OUT)
            self._free.put(tree)

    def try_all(self, code: str, mutants: Sequence[Mutant], timeout: float) -> Iterator[Outcome]:
        """The outcomes in the order of the mutants."""
        pool = ThreadPoolExecutor(max(1, self._free.qsize()))
        try:
            yield from pool.map(lambda each: self.try_out(code, each, timeout), mutants)
        finally:
            pool.shutdown(cancel_futures=True)

    def tests_alone(self, path: str, timeout: float) -> str:
        """As `run_tests`, of the code as it is."""
        tree = self._free.get()
        try:
            return run_tests(tree, tests_of(tree, path), timeout)
        finally:
            self._free.put(tree)

    def try_out(self, code: str, mutant: Mutant, timeout: float) -> Outcome:
        tree = self._free.get()
        path = tree / mutant.path
        source = path.read_text()
        try:
            path.write_text(mutated(source, mutant.mutation))
            by = run_tests(tree, tests_of(tree, mutant.path), timeout)
        finally:
            path.write_text(source)
            self._free.put(tree)
        where = (mutant.path, mutant.mutation.line, mutant.mutation.start, mutant.mutation.new)
        return Outcome(code, *where, killed=bool(by), by=by)


def note(state: BinaryIO, outcome: Outcome) -> None:
    """Adds a line, and ends one before it that was cut off."""
    state.write(b"\n" + msgspec.json.encode(outcome) + b"\n")
    state.flush()


def earlier(state: Path, code: str) -> dict[tuple[str, int, str], Outcome]:
    """What is known of mutants of the same code; a line that was cut off is passed over."""
    decoder = msgspec.json.Decoder(Outcome)
    known = {}
    for line in state.read_bytes().splitlines() if state.exists() else ():
        try:
            outcome = decoder.decode(line)
        except msgspec.MsgspecError:
            continue
        if outcome.code == code:
            known[outcome.path, outcome.start, outcome.new] = outcome
    return known


def main(arguments: Sequence[str], root: Path = Path(__file__).parents[2]) -> int:
    """Exit code 1 if tests fail with the code as it is: then they would kill every mutant."""
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folders", nargs="+", choices=FOLDERS, default=FOLDERS)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=TIMEOUT)
    parser.add_argument("--state", type=Path, default=root / ".mutants")
    given = parser.parse_args(arguments)
    texts = sources(root)  # what is known of a mutant holds whichever folders are drawn from
    code = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
    mutants = list(islice(drawn(sources(root, given.folders), given.seed), given.count))
    known = earlier(given.state, code)
    missing = [each for each in mutants if _key(each) not in known]
    print(f"{len(mutants)} mutants with seed {given.seed}, {len(missing)} still to be tried")
    with (
        tempfile.TemporaryDirectory(prefix="folkmoot-mutants-") as directory,
        given.state.open("ab") as state,
    ):
        trees = Trees(root, Path(directory), given.at_once if missing else 0)
        for folder in sorted({Path(each.path).parts[0] for each in missing}):
            alone = Outcome(code, f"{folder}/__init__.py", 0, -1, "", killed=False, by="")
            if (alone.path, -1, "") in known:
                continue
            wrong = trees.tests_alone(alone.path, given.timeout)
            if wrong:
                print(f"the tests of {folder} fail without any mutant: {wrong}")
                return 1
            note(state, alone)
        for outcome in trees.try_all(code, missing, given.timeout):
            note(state, outcome)
            known[outcome.path, outcome.start, outcome.new] = outcome
            print("killed  " if outcome.killed else "survived", f"{outcome.path}:{outcome.line}")
    return tell(mutants, known)


def tell(mutants: Sequence[Mutant], known: dict[tuple[str, int, str], Outcome]) -> int:
    survivors = [each for each in mutants if not known[_key(each)].killed]
    for mutant in sorted(map(str, survivors)):
        print(mutant)
    share = 100 * (len(mutants) - len(survivors)) / max(1, len(mutants))
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} killed ({share:.0f} %)")
    return 0


def _key(mutant: Mutant) -> tuple[str, int, str]:
    return mutant.path, mutant.mutation.start, mutant.mutation.new


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
