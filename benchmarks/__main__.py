"""Runs every `bench_*.py` beside this file, or those whose names contain an argument.

Each runs in its own process, so that none measures what another left behind.
"""

import subprocess
import sys
from pathlib import Path


def main(wanted: list[str]) -> int:
    names = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    chosen = [name for name in names if not wanted or any(part in name for part in wanted)]
    if not chosen:
        print(f"no benchmark fits; there are: {', '.join(names) or 'none'}", file=sys.stderr)
        return 2
    failed = False
    for name in chosen:
        print(f"== {name}", flush=True)
        failed |= subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
