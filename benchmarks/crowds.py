"""What only a large group shows: a cold start, the cost of a change in ZooKeeper, a large commit."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, Final

from benchmarks.harness import Context, Sample, cell
from benchmarks.programs import Program, ProgramFailed
from benchmarks.results import Results, Target
from folkmoot.coordination import paths
from folkmoot.coordination.connector import connect
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Get, Node

OURS: Final = "Folkmoot"
MEMBERS: Final = (25, 50, 100)
LARGE: Final = 1_000
REST: Final = 20.0
SHARE: Final = 10
PROCESSES: Final = 10
COMMIT_PARTITIONS: Final = 1_000
COMMITS: Final = 20
MODULE: Final = "benchmarks.clients.folkmoot_crowd"
LOOK_EVERY: Final = 0.25
PATIENCE: Final = 60.0
PER_MEMBER: Final = "per member"


def measure(context: Context, results: Results) -> None:
    smoke = context.scale.name == "smoke"
    costs: dict[int, float] = {}
    for members in MEMBERS[-1:] if context.scale.name == "quick" else MEMBERS:
        size = 4 if smoke else members
        costs[size] = _crowd(context, results, size, 2 if smoke else PROCESSES)
        if smoke:
            break
    if len(costs) > 1:
        least, most = min(costs), max(costs)
        text = f"groups: operations per member as one leaves, {most} members against {least}"
        _target(results, text, costs[most] / costs[least], 1.0, "×")
    if context.scale.name != "quick":
        _crowd(context, results, 6 if smoke else LARGE, 2 if smoke else PROCESSES, bare=True)
    _commits(context, results, 20 if smoke else COMMIT_PARTITIONS)
    results.notes.append(
        "Large groups: ten processes, no records. Operations are counted where they are submitted, in "
        "all members, from the leaving on until everybody has a fair share again; signs of life and "
        "looks in case a watch was lost are among them."
    )


def _crowd(
    context: Context, results: Results, members: int, processes: int, *, bare: bool = False
) -> float:
    """A group that starts together, and loses one. → operations per member of the latter.

    `bare` members have no consumers: so many fit on one machine. They are also counted at rest.
    """
    server = context.server("folkmoot")
    topic = context.new_topic("folkmoot", members * SHARE)
    told: dict[str, Any] = {"topic": topic, "group": f"crowd-{topic}"}
    case = f"{members:,} members, {members * SHARE:,} partitions"
    verb = "members" if bare else "crowd"
    context.say(f"-- {case}")
    with ExitStack() as stack:
        shares = [len(range(place, members, processes)) for place in range(processes)]
        programs = [
            stack.enter_context(server.client(verb, module=MODULE, members=each, **told))
            for each in shares
        ]
        for program in programs:
            program.wait_ready()
        begun = time.monotonic()
        for program in programs:
            program.go()
        took = _settled(programs, members, members * SHARE) - begun
        plans = _plans(context, told["group"])
        idle = _asked_at_rest(programs) / members if bare else 0.0
        before = _asked(_standing(programs))
        leaves = time.monotonic()
        programs[0].go("leave")
        programs[0].hear("standing", PATIENCE)
        served = _settled(programs, members - 1, members * SHARE) - leaves
        asked = _asked(_standing(programs)) - before
        left_plans = _plans(context, told["group"]) - plans
        for program in programs:
            program.go("end")
        for program in programs:
            program.wait_done()
    server.delete_topic(topic)
    cost = asked / members
    start = Sample(value=took, facts={"plans": plans})
    leaving = Sample(
        value=asked, facts={PER_MEMBER: cost, "plans": left_plans, "stable after, s": served}
    )
    results.cells.append(cell(f"cold start of {case}", OURS, "s", [start]))
    results.cells.append(cell(f"one leaves of {case}", OURS, "reads and writes", [leaving]))
    context.say(
        f"   stable after {took:.2f} s, {plans} plans; one leaves: {cost:.1f} per member, {served:.2f} s"
    )
    if bare:
        results.cells.append(
            cell(
                f"at rest, {case}",
                OURS,
                "reads per member and second",
                [Sample(value=idle, facts={})],
            )
        )
        _target(results, f"groups: cold start of {case}", took, 20.0)
        _target(results, f"groups: plans in a cold start of {case}", plans, 3, "plans")
        _target(results, f"groups: one leaves of {case}", served, 1.0)
        text = f"groups: reads per member and second at rest, {case}"
        _target(results, text, idle, 0.5, "")
    if members == MEMBERS[-1]:
        _target(results, f"groups: cold start of {case}", took, 5.0)
        _target(results, f"groups: plans in a cold start of {case}", plans, 3, "plans")
        text = f"groups: reads and writes per member as one leaves of {case}"
        _target(results, text, cost, 15, "")
    return cost


def _asked_at_rest(programs: Sequence[Program]) -> float:
    """Reads and writes in a second of all members together."""
    begun, before = time.monotonic(), _asked(_standing(programs))
    time.sleep(REST)
    return (_asked(_standing(programs)) - before) / (time.monotonic() - begun)


def _settled(programs: Sequence[Program], members: int, partitions: int) -> float:
    """When the last partition was given, once everybody has a fair share."""
    deadline = time.monotonic() + PATIENCE
    shares: list[int] = []
    while time.monotonic() < deadline:
        found = _standing(programs)
        shares = [share for each in found for share in each["shares"]]
        whole = len(shares) == members and sum(shares) == partitions
        if whole and max(shares) - min(shares) <= 1:
            return float(max(each["changed"] for each in found))
        time.sleep(LOOK_EVERY)
    raise ProgramFailed(f"{members} members did not settle within {PATIENCE:g} s: {shares}")


def _asked(standing: Sequence[dict[str, Any]]) -> int:
    return sum(sum(each["asked"].values()) for each in standing)


def _standing(programs: Sequence[Program]) -> list[dict[str, Any]]:
    for program in programs:
        program.go("tell")
    return [program.hear("standing", PATIENCE) for program in programs]


def _plans(context: Context, group: str) -> int:
    """How many were written: the version of their node."""
    session = connect(context.server("folkmoot").address, session_timeout=10.0)
    try:
        node: Node = execute(session, Get(paths.plan(group)))
    finally:
        session.close()
    return node.stat.version


def _commits(context: Context, results: Results, partitions: int) -> None:
    """One member that has everything commits all of it at once."""
    case = f"commit of {partitions:,} partitions"
    server = context.server("folkmoot")
    topic = context.new_topic("folkmoot", partitions)
    told = {"topic": topic, "group": f"commit-{topic}", "partitions": partitions}
    with server.client("commit", module=MODULE, times=COMMITS, **told) as program:
        program.wait_ready()
        program.go()
        told_back = program.wait_done()
    took = [1000 * each for each in told_back["took"]]
    server.delete_topic(topic)
    found = Sample(
        value=median(took), facts={"slowest": max(took), "client CPU, ms": 1000 * told_back["cpu"]}
    )
    results.cells.append(cell(case, OURS, "ms", [found]))
    context.say(
        f"-- {case}: {found.value:.0f} ms, the slowest {max(took):.0f}, CPU {1000 * told_back['cpu']:.0f}"
    )
    _target(results, f"groups: {case}", found.value, 100, "ms")


def _target(results: Results, text: str, figure: float, wanted: float, unit: str = "s") -> None:
    results.targets.append(
        Target(text=text, figure=figure, wanted=wanted, unit=unit, better="lower")
    )
