"""`make simulate SEEDS=1..100000`, and others of KINDS: many histories, over several runs.

SEEDS=1000 are so many from a seed on that follows from the code: another change, other histories.
What is done is noted, fifty seeds a line, in the file named by STATE, and is not done again as long as
the kind and the code that histories run through are the same (fingerprint.py). A history that breaks a
promise is printed and noted, and the others go on; the exit code is then 1. Ctrl-C loses at most fifty
histories of each process.
"""

import argparse
import gc
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.simulation import history as groups
from tests.simulation.fingerprint import GROUPS, fingerprint, first_seed
from tests.simulation.frame import raise_logged_faults
from tests.simulation.history import History
from tests.simulation.replication import history as clusters
from tests.simulation.replication.history import ReplicationHistory

STEP: Final = 50
SWEEP: Final = 20
"""So many histories are left to lie before their rings of references are looked for."""


REPLICATION: Final = "tests.simulation.replication.history"
KINDS: Final[dict[str, tuple[str, Callable[[int], Any], str]]] = {
    "groups": (GROUPS, History, "tests/simulation/test_simulation.py -k no_history"),
    "replication": (REPLICATION, ReplicationHistory, "tests/simulation/replication -k no_history"),
    "blackouts": (
        *(REPLICATION, partial(ReplicationHistory, blackouts=10)),
        "tests/simulation/replication -k the_power_fails",
    ),
}
"""What is simulated → where its code begins, a history of it, and what replays one."""


ENOUGH: Final = 250
"""So many histories at least must show all that is expected of their kind."""
_NOTICES: Final = ("Assigned", "Revoking", "Lost", "Committed", "Rebalanced", "Left", "Replaced")
_STAGES: Final = (
    *("joining to member", "member to joining", "member to leaving", "leaving to left"),
    *("member to member fenced", "member fenced to joining", "member to left"),
    *("member to member late", "member late to member", "member late to joining expired"),
    "joining expired to joining",
)
EXPECTED: Final[dict[str, tuple[str, ...]]] = {
    "groups": (
        *(f"fault {name}" for name in groups.FAULT_NAMES),
        *(f"notice {name}" for name in _NOTICES),
        *(f"stage {name}" for name in _STAGES),
        *("Multi ok", "Multi MultiFailed", "Create ok", "claim", "reset", "deleted offset"),
        *("steal", "lost replies", "log below the group"),
        *("start at the end", "start of what appeared", "commits by hand"),
    ),
    "replication": (
        *(f"fault {name}" for name in clusters.FAULT_NAMES),
        *("activation", "acknowledged", "answered by the leader", "consumed", "truncation"),
        *("state VersionedState", "state Superseded", "lost replies", "ended by DiskFailed"),
        *(
            "reassigned",
            "cancelled",
            "deleted",
            "records deleted",
            "found by time",
            "changed to fsync",
        ),
    ),
    "blackouts": ("fault power of all", "acknowledged"),
}


class Done(msgspec.Struct, frozen=True):
    """A line of the state file: histories `first` to `last`, both included, and what happened in them."""

    code: str  # the kind and the fingerprint
    first: int
    last: int
    seconds: float
    broken: dict[str, str]  # seed to promise
    seen: dict[str, int]


def live(kind: str, code: str, first: int, last: int) -> Done:
    """Run these histories. In a process of the pool."""
    logging.Logger.exception = raise_logged_faults  # type: ignore[assignment,method-assign]
    logging.disable(logging.CRITICAL)
    _, make, _ = KINDS[kind]
    gc.disable()
    begun = time.process_time()
    broken: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for seed in range(first, last + 1):
        if seed % SWEEP == 0:
            gc.collect()
        history = make(seed)
        try:
            history.run()
        except Exception as error:
            broken[str(seed)] = f"{type(error).__name__}: {error}"
        seen.update(history.world.seen)
    return Done(code, first, last, time.process_time() - begun, broken, dict(seen))


def earlier(state: Path, code: str) -> list[Done]:
    """What earlier runs of the same code have noted; a line that was cut off is passed over."""
    decoder = msgspec.json.Decoder(Done)
    noted = []
    for line in state.read_bytes().splitlines() if state.exists() else ():
        try:
            done = decoder.decode(line)
        except msgspec.MsgspecError:
            continue
        if done.code == code:
            noted.append(done)
    return noted


def portions(first: int, last: int, noted: Sequence[Done]) -> Iterator[tuple[int, int]]:
    """The seeds from `first` to `last`, cut at the fifties, without those that are done."""
    finished = {(done.first, done.last) for done in noted}
    while first <= last:
        end = min(last, first - first % STEP + STEP - 1)
        if (first, end) not in finished:
            yield first, end
        first = end + 1


def seeds(text: str) -> tuple[int | None, int]:
    """`a..b`, both included, or how many."""
    first, dots, last = text.rpartition("..")
    if last.isdecimal() and not dots and int(last):
        return None, int(last)
    if not first.isdecimal() or not last.isdecimal() or int(last) < int(first):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a range like 1..1000 nor a number")
    return int(first), int(last)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "seeds", type=seeds, metavar="A..B|N", help="both are included; so many, by the code"
    )
    parser.add_argument("--of", choices=KINDS, default="groups", help="default: %(default)s")
    parser.add_argument(
        "--state", type=Path, default=Path(".simulated"), help="default: %(default)s"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    given = parser.parse_args(arguments)
    begin, _, replay = KINDS[given.of]
    code = fingerprint(begin)
    kind_and_code = f"{given.of} {code}"
    noted = earlier(given.state, kind_and_code)
    first, last = given.seeds
    if first is None:
        first = first_seed(code)
        last += first - 1
    todo = list(portions(first, last, noted))
    count = sum(d.last - d.first + 1 for d in noted)
    print(f"code {code}, seeds {first}..{last}: {count} histories are noted", flush=True)
    with ProcessPoolExecutor(given.jobs) as pool, given.state.open("ab") as out:
        running = [pool.submit(live, given.of, kind_and_code, *portion) for portion in todo]
        try:
            for number, future in enumerate(as_completed(running), 1):
                done = future.result()
                # A line that was cut off by a crash must not take this one with it.
                out.write(b"\n" + msgspec.json.encode(done) + b"\n")
                out.flush()
                noted.append(done)
                for seed, promise in done.broken.items():
                    print(f"seed {seed}: {promise}", flush=True)
                if number % 10 == 0:
                    print(f"{number} of {len(todo)} portions", flush=True)
        except KeyboardInterrupt:
            for future in running:
                future.cancel()
            print("interrupted; what is done is noted")
    return tell(noted, replay, EXPECTED[given.of])


def tell(noted: Sequence[Done], replay: str, expected: Sequence[str] = ()) -> int:
    """The totals of all runs of this code, and 1 if any history has broken a promise, or if of so many as
    are ENOUGH none has shown what is expected."""
    seen: Counter[str] = Counter()
    broken: dict[str, str] = {}
    for done in noted:
        seen.update(done.seen)
        broken.update(done.broken)
    histories = sum(done.last - done.first + 1 for done in noted)
    seconds = sum(done.seconds for done in noted)
    print(", ".join(f"{what} {count}" for what, count in sorted(seen.items())))
    print(f"{histories} histories in {seconds:.0f} s of one process, {len(broken)} broke a promise")
    for seed in broken:
        print(f"replay with FOLKMOOT_SEED={seed} python -m pytest -s {replay}")
    never = [what for what in expected if not seen[what]] if histories >= ENOUGH else []
    if never:
        print(f"these never happened: {', '.join(never)}")
    return int(bool(broken or never))


if __name__ == "__main__":
    sys.exit(main())
