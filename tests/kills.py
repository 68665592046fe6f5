"""`make kills KILLS=2000`: broker processes are killed under load, some dozens a round, over several runs.

Each round is a run of the test with a seed of its own. What a round has done is a line of the file named by
STATE, so that a run goes on where the last one was ended; a round that fails ends it, with its seed.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TEST = "tests/brokers/server/test_replicated_kills.py"
AT_ONCE = 40


def one_round(kills: int, seed: int) -> dict[str, Any] | None:
    """The figures of a round; None if it has failed, and then what it said is printed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-s", TEST]
    settings = {"FOLKMOOT_KILLS": str(kills), "FOLKMOOT_SEED": str(seed)}
    done = subprocess.run(
        command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, check=False
    )
    figures = [line for line in done.stdout.splitlines() if line.startswith("figures ")]
    if done.returncode or not figures:
        print(done.stdout)
        return None
    found: dict[str, Any] = json.loads(figures[-1].removeprefix("figures "))
    return {"seed": seed, **found}


def noted(state: Path) -> Counter[str]:
    """The figures of all rounds; a line that was cut off is passed over."""
    total: Counter[str] = Counter()
    for line in state.read_text().splitlines() if state.exists() else ():
        try:
            figures = json.loads(line)
        except ValueError:
            continue
        total["rounds"] += 1
        total.update({name: count for name, count in figures.items() if name != "seed"})
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=2000, help="in all runs together")
    parser.add_argument("--state", type=Path, default=Path(".kills"))
    given = parser.parse_args(arguments)
    while (left := given.kills - noted(given.state)["kills"]) > 0:
        seed = random.SystemRandom().randrange(2**32)
        figures = one_round(min(AT_ONCE, left), seed)
        if figures is None:
            print(f"replay with FOLKMOOT_SEED={seed} FOLKMOOT_KILLS={AT_ONCE} pytest -s {TEST}")
            return 1
        with given.state.open("a") as out:
            out.write("\n" + json.dumps(figures) + "\n")
        print(figures, flush=True)
    print(dict(noted(given.state)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
