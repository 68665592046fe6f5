"""What only a large group shows: a cold start, the cost of a change in ZooKeeper, a large commit."""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from benchmarks.harness import Context, Sample
from benchmarks.peers import Server
from benchmarks.peers.folkmoot import FolkmootServer
from benchmarks.programs import Program, ProgramFailed, all_ready
from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Get, Node

OURS: Final = "Folkmoot"
MEMBERS: Final = (25, 50, 100)
LARGE: Final = 1_000
IDLE_TIME: Final = 20.0
PARTITIONS_PER_MEMBER: Final = 10
PROCESSES: Final = 10
COMMIT_PARTITIONS: Final = 1_000
COMMITS: Final = 20
POLL_INTERVAL: Final = 0.25
PATIENCE: Final = 60.0
PER_MEMBER: Final = "per member"


def measure(context: Context) -> None:
    smoke = context.scale.name == "smoke"
    costs: dict[int, float] = {}
    for members in MEMBERS[-1:] if context.scale.name == "quick" else MEMBERS:
        size = 4 if smoke else members
        costs[size] = _crowd(context, size, 2 if smoke else PROCESSES)
        if smoke:
            break
    if len(costs) > 1:
        least, most = min(costs), max(costs)
        text = f"groups: operations per member as one leaves, {most} members against {least}"
        context.results.limit(text, costs[most] / costs[least], 1.0, "×")
    if context.scale.name != "quick":
        _crowd(context, 6 if smoke else LARGE, 2 if smoke else PROCESSES, bare=True)
    _commits(context, 20 if smoke else COMMIT_PARTITIONS)
    context.results.notes.append(
        "Large groups: ten processes, no records. Operations are counted where they are submitted, in "
        "all members, from the leaving on until everybody has a fair share again; signs of life and "
        "looks in case a watch was lost are among them."
    )


def _crowd(context: Context, members: int, processes: int, *, bare: bool = False) -> float:
    """A group that starts together, and loses one. → operations per member of the latter.

    `bare` members have no consumers: so many fit on one machine. They are also counted at rest.
    """
    server = context.server("folkmoot")
    partitions = members * PARTITIONS_PER_MEMBER
    topic = context.new_topic("folkmoot", partitions)
    group = f"crowd-{topic}"
    case = f"{members:,} members, {partitions:,} partitions"
    context.print_status(f"-- {case}")
    with all_ready(
        server.client(
            "members" if bare else "crowd",
            program="folkmoot_crowd",
            topic=topic,
            group=group,
            members=len(range(index, members, processes)),
        )
        for index in range(processes)
    ) as programs:
        started_at = time.monotonic()
        for program in programs:
            program.go()
        took = _wait_until_settled(programs, members, partitions) - started_at
        plans = _plans(server, group)
        idle = _idle_request_rate(programs) / members if bare else 0.0
        before = _requests(programs)
        leave_time = time.monotonic()
        programs[0].go("leave")
        programs[0].wait_for_event("standing", PATIENCE)
        served = _wait_until_settled(programs, members - 1, partitions) - leave_time
        requests = _requests(programs) - before
        plans_after_leave = _plans(server, group) - plans
        for program in programs:
            program.go("end")
        for program in programs:
            program.wait_done()
    server.delete_topic(topic)
    cost = requests / members
    facts = {PER_MEMBER: cost, "plans": plans_after_leave, "stable after, s": served}
    context.print_status(
        f"   stable after {took:.2f} s, {plans} plans; one leaves: {cost:.1f} per member, {served:.2f} s"
    )
    _add(context, f"cold start of {case}", "s", Sample(value=took, facts={"plans": plans}))
    _add(context, f"one leaves of {case}", "reads and writes", Sample(value=requests, facts=facts))
    if bare:
        sample = Sample(value=idle)
        _add(context, f"at rest, {case}", "reads per member and second", sample)
    if bare or members == MEMBERS[-1]:
        context.results.limit(f"groups: cold start of {case}", took, 20.0 if bare else 5.0, "s")
        context.results.limit(f"groups: plans in a cold start of {case}", plans, 3, "plans")
    if bare:
        context.results.limit(f"groups: one leaves of {case}", served, 1.0, "s")
        context.results.limit(f"groups: reads per member and second at rest, {case}", idle, 0.5)
    elif members == MEMBERS[-1]:
        context.results.limit(
            f"groups: reads and writes per member as one leaves of {case}", cost, 15
        )
    return cost


def _add(context: Context, case: str, unit: str, sample: Sample) -> None:
    context.add(case, OURS, unit, [sample])


def _idle_request_rate(programs: Sequence[Program]) -> float:
    """Reads and writes in a second of all members together."""
    started_at, before = time.monotonic(), _requests(programs)
    time.sleep(IDLE_TIME)
    return (_requests(programs) - before) / (time.monotonic() - started_at)


def _wait_until_settled(programs: Sequence[Program], members: int, partitions: int) -> float:
    """When the last partition was given, once all members have a fair share."""
    deadline = time.monotonic() + PATIENCE
    owned_counts: list[int] = []
    while time.monotonic() < deadline:
        found = _member_states(programs)
        owned_counts = [owned_count for each in found for owned_count in each["shares"]]
        is_complete = len(owned_counts) == members and sum(owned_counts) == partitions
        if is_complete and max(owned_counts) - min(owned_counts) <= 1:
            return float(max(each["changed"] for each in found))
        time.sleep(POLL_INTERVAL)
    raise ProgramFailed(f"{members} members did not settle within {PATIENCE:g} s: {owned_counts}")


def _requests(programs: Sequence[Program]) -> int:
    return sum(each["requests"] for each in _member_states(programs))


def _member_states(programs: Sequence[Program]) -> list[dict[str, Any]]:
    for program in programs:
        program.go("tell")
    return [program.wait_for_event("standing", PATIENCE) for program in programs]


def _plans(server: Server, group: str) -> int:
    """How many were written: the version of their node."""
    assert isinstance(server, FolkmootServer)
    with server.connected() as session:
        node: Node = execute(session, Get(paths.plan(group)))
    return node.stat.version


def _commits(context: Context, partitions: int) -> None:
    """One member that has everything commits all of it at once."""
    case = f"commit of {partitions:,} partitions"
    server = context.server("folkmoot")
    topic = context.new_topic("folkmoot", partitions)
    parameters = {"topic": topic, "group": f"commit-{topic}", "partitions": partitions}
    with server.client("commit", program="folkmoot_crowd", times=COMMITS, **parameters) as program:
        program.wait_ready()
        program.go()
        report = program.wait_done()
    took = [1000 * each for each in report["took"]]
    server.delete_topic(topic)
    facts = {"slowest": max(took), "client CPU, ms": 1000 * report["cpu"]}
    sample = Sample(value=median(took), facts=facts)
    _add(context, case, "ms", sample)
    context.print_status(f"-- {case}: {sample.value:.0f} ms, the slowest {max(took):.0f}")
    context.results.limit(f"groups: {case}", sample.value, 100, "ms")
