"""`python -m benchmarks`: runs scenarios against the peers, prints tables, writes JSON and charts."""

import argparse
import fcntl
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Final

from benchmarks import machine, report
from benchmarks.environment import BENCH
from benchmarks.harness import FULL, QUICK, SMOKE, Context, Scale
from benchmarks.peers import ALL, Server, Unavailable
from benchmarks.results import Report, Results

FOLDER: Final = Path(__file__).parent
LATEST: Final = FOLDER / "results" / "latest.json"


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help=f"{', '.join(scenarios())} (default: all)"
    )
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--quick", action="store_true", help="one short round of each, in minutes")
    scale.add_argument(
        "--smoke", action="store_true", help="Folkmoot alone, in seconds: does it still run?"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="counted rounds of each contender")
    parser.add_argument(
        "--peers",
        metavar="NAMES",
        help=f"only these beside Folkmoot, of {', '.join(peer.system for peer in ALL[1:])}; or none",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="where the JSON goes (default: results/)"
    )
    return parser.parse_args(arguments)


def scenarios() -> list[str]:
    """The names of the modules `bench_<name>.py`, in the order of the page."""
    names = (path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
    return sorted(names, key=report.order_key)


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["report"]:
        return report.write_docs(LATEST)
    args = parse_arguments(arguments)
    unknown = sorted(set(args.scenarios) - set(scenarios()))
    if unknown:
        print(f"no scenario {unknown[0]}; there are: {', '.join(scenarios())}", file=sys.stderr)
        return 2
    if args.output is not None and args.output.is_dir():
        print(f"--output {args.output} is a directory: name a file in it", file=sys.stderr)
        return 2
    try:
        with exclusive_run():
            return run(args, arguments)
    except KeyboardInterrupt:
        print("interrupted: servers are stopped, and what they kept is removed", file=sys.stderr)
        return 130


def run(args: argparse.Namespace, arguments: Sequence[str]) -> int:
    scale = SMOKE if args.smoke else QUICK if args.quick else FULL
    if args.rounds:
        scale = replace(scale, rounds=args.rounds)
    names = args.scenarios or scenarios()
    new_report = Report(
        when=now(),
        command=" ".join(["python -m benchmarks", *arguments]),
        machine=machine.facts(),
        versions={},
    )
    present = prepare_peers(new_report, "none" if args.smoke else args.peers)
    output = args.output or (LATEST if scale.name == "full" else None)
    failed = run_all(new_report, names, present, scale, output)
    has_charts = any(results.charts for results in new_report.scenarios)
    if output is not None and scale.name != "smoke" and has_charts:
        report.draw(output)
    report.show(new_report)
    for name in failed:
        print(f"failed: {name}, see above", file=sys.stderr)
    return 1 if failed else 0


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


@contextmanager
def exclusive_run() -> Iterator[None]:
    """One run at a time: two would measure each other. What it or a killed one leaves is removed."""
    BENCH.mkdir(exist_ok=True)
    with (BENCH / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_work()
        try:
            yield
        finally:
            remove_work()


def remove_work() -> None:
    for leftover in BENCH.glob("work-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def run_all(
    new_report: Report,
    names: Sequence[str],
    peers: dict[str, type[Server]],
    scale: Scale,
    output: Path | None,
) -> list[str]:
    """The names of those that failed. What was found is saved after each, a run being long."""
    failed = []
    for name in names:
        try:
            new_report.scenarios.append(measure_scenario(name, peers, scale))
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        if new_report.scenarios[-1].failed:
            failed.append(name)
        took = report.duration(new_report.scenarios[-1].seconds)
        print(f"== {name} took {took}", flush=True)
        if output is not None:
            report.save(new_report, output)
    total = report.duration(sum(each.seconds for each in new_report.scenarios))
    print(f"== all of it took {total}", flush=True)
    return failed


def prepare_peers(report: Report, requested: str | None) -> dict[str, type[Server]]:
    """The systems that can be run here, Folkmoot first; the report gets their versions, or the reason."""
    names = None if requested is None else {"folkmoot", *requested.replace(",", " ").split()}
    present: dict[str, type[Server]] = {}
    for peer in ALL:
        if names is None or peer.system in names:
            try:
                report.versions[peer.title] = peer.prepare()
                present[peer.system] = peer
            except Unavailable as reason:
                report.missing[peer.system] = f"{peer.title}: {reason}"
                print(f"skipped {report.missing[peer.system]}", flush=True)
    return present


def measure_scenario(name: str, peers: dict[str, type[Server]], scale: Scale) -> Results:
    """One scenario, in this process: its servers and clients are others."""
    module = import_module(f"benchmarks.bench_{name}")
    print(f"== {module.TITLE}", flush=True)
    started_at = time.monotonic()
    # Beside the code, and not in /tmp, which may be memory and no disk.
    work = Path(tempfile.mkdtemp(prefix="work-", dir=BENCH))
    results = Results(name=name, title=module.TITLE)
    with Context(peers, scale, results, work) as context:
        module.run(context)
    results.seconds = time.monotonic() - started_at
    results.when, results.commit = now(), machine.commit()
    if scale.name == "smoke":
        results.targets.clear()  # so few records say nothing about speed
    return results


def be_interruptible() -> None:
    """Each signal that ends a run raises KeyboardInterrupt, so that every `with` stops its servers.

    SIGINT does so even if a shell ignored it for a run in the background; SIGHUP does not under nohup.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    be_interruptible()
    sys.exit(main(sys.argv[1:]))
