"""What a change of a group costs: members that leave, join and die under a steady stream of records.

Ten member processes, a hundred partitions, a record every 20 ms in each. For each peer in turn one
group lives through all the events; then what only a large group shows (crowds.py).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from benchmarks import crowds
from benchmarks.harness import Context, Part, Sample
from benchmarks.peers.folkmoot import FolkmootServer
from benchmarks.rebalances import CALM_TIME, SESSION_TIMEOUT, Group, judge
from benchmarks.results import Cell, Chart, Results, median_of
from folkmoot.coordination.groups.ownership import committed
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.protocol.records import TopicPartition

TITLE: Final = "Groups: members that leave, join and die"

MEMBERS: Final = 10
PARTITIONS: Final = 100
OURS: Final = "Folkmoot"
CLASSIC: Final = "Kafka (cooperative-sticky)"
NEW: Final = "Kafka (new protocol)"
LEAVE: Final = "one of ten leaves"
JOIN: Final = "a tenth joins"
KILL: Final = "SIGKILL"
KILL_BOTH: Final = "SIGKILL, of its guardian too"
PAUSE: Final = "longest pause elsewhere, s"
BEFORE: Final = "longest pause before, s"
MOVED: Final = "moved"
LEAST: Final = "least possible"
SILENT: Final = "not served in 30 s"
TWICE: Final = "delivered twice"
UNCOMMITTED: Final = "uncommitted"

CHARTS: Final = {
    "moved": "Until the last partition that moved is served again",
    "stayed": "Longest pause of a partition that did not move",
}


def run(context: Context) -> None:
    results = context.results
    smoke = context.scale.name == "smoke"
    size = (3, 6) if smoke else (MEMBERS, PARTITIONS)
    contenders = {OURS: partial(_run_life, context, OURS, "folkmoot", {}, *size)}
    if context.has("kafka"):
        for name, protocol in ((CLASSIC, "classic"), (NEW, "consumer")):
            parameters = {"protocol": protocol}
            contenders[name] = partial(_run_life, context, name, "kafka", parameters, *size)
    rounds = context.scale.side_rounds
    samples = context.compare("lives of groups", contenders, rounds, warm_up=False)
    for case in dict.fromkeys(case for case, _ in samples):
        for name in contenders:
            if (case, name) in samples:
                context.add(case, name, "s", samples[case, name], "lower")
    results.notes.append(
        "From the event until the last partition that moved was delivered by its new owner, by the "
        "members' own logs of deliveries; pauses include the 20 ms between two records. Members are "
        "ready, with all imports done, when they are told to join."
    )
    _judge(results)
    results.charts += [
        _chart(results, "moved", median_of, spread=True),
        _chart(results, "stayed", lambda found: found.facts[PAUSE]),
    ]
    context.attempt("large groups", partial(crowds.measure, context))


def _run_life(
    context: Context,
    contender: str,
    peer: str,
    parameters: Mapping[str, str],
    members: int,
    partitions: int,
) -> dict[Part, Sample]:
    """Everything that one group lives through; it is whole before each event but the joining."""
    server = context.server(peer)
    topic = context.new_topic(peer, partitions)
    name = f"group-{topic}"
    found: dict[str, Sample] = {}
    with Group(server, partitions, topic=topic, group=name, **parameters) as group:
        group.form(members)
        leaves, dies, dies_with_guardian = list(group.members)[:3]
        least = group.owned_count(leaves)
        found[LEAVE] = _settle_and_judge(group, group.leave(leaves), least)
        newcomer = group.prepare()
        group.watch(CALM_TIME)
        found[JOIN] = _settle_and_judge(group, group.join(newcomer), partitions // members)
        if parameters.get("protocol") != "consumer":  # there the session is the server's, 45 s
            found[KILL] = _kill(context, peer, group, dies, name, topic)
        if peer == "folkmoot":
            group.settle(group.join(group.prepare()))
            found[KILL_BOTH] = _kill(
                context, peer, group, dies_with_guardian, name, topic, guardian=True
            )
    server.delete_topic(topic)
    return {(case, contender): sample for case, sample in found.items()}


def _settle_and_judge(group: Group, at: float, least: int, **more: float) -> Sample:
    """What came of the event, once everything is calm again."""
    change = judge(group.deliveries, at, group.settle(at))
    facts: dict[str, float] = {
        PAUSE: change.longest_pause,
        BEFORE: change.pause_before,
        MOVED: change.moved,
        LEAST: least,
        TWICE: change.twice,
        SILENT: change.silent,
    }
    return Sample(value=change.served_again, facts={**facts, **more})


def _kill(
    context: Context,
    peer: str,
    group: Group,
    victim: int,
    name: str,
    topic: str,
    *,
    guardian: bool = False,
) -> Sample:
    """With what it had been given and had not committed, read before another member commits there."""
    owned = group.owned(victim)
    if peer != "folkmoot":
        return _settle_and_judge(group, group.kill(victim, guardian=guardian), len(owned))
    server = context.server(peer)
    assert isinstance(server, FolkmootServer)
    with server.connected() as session:
        at = group.kill(victim, guardian=guardian)
        committed_states = {
            each: execute(session, committed(name, TopicPartition(topic, each))) for each in owned
        }
    delivered = group.delivered_offsets(victim)
    uncommitted = sum(
        delivered[each] - (0 if state is None else state.offset or 0)
        for each, state in committed_states.items()
    )
    return _settle_and_judge(group, at, len(owned), **{UNCOMMITTED: uncommitted})


def _judge(results: Results) -> None:
    """The lines of what is to be reached, beside Kafka's figures of the same run."""
    for case, limit in ((LEAVE, 0.5), (JOIN, 0.5), (KILL, 0.7), (KILL_BOTH, SESSION_TIMEOUT + 1.5)):
        ours, theirs = results.find(case, OURS), results.find(case, CLASSIC)
        if ours is None:
            continue
        text = f"groups, {case}: last partition that moved served again"
        times = None if case == KILL_BOTH else 1.0  # Kafka has no guardian: that is the case before
        if theirs is not None and theirs.facts[SILENT]:
            text += f" ({CLASSIC} did not come to rest)"
            theirs = times = None
        results.judge(text, ours, theirs, wanted=limit, times=times)
        most = 0.1 if case in (LEAVE, JOIN) else None
        if most is not None or times is not None:
            text = f"groups, {case}: longest pause of one that did not move"
            results.judge(text, ours, theirs, fact=PAUSE, wanted=most, times=times)
        text = f"groups, {case}: partitions moved, the least possible"
        results.limit(text, ours.facts[MOVED], ours.facts[LEAST])
        if UNCOMMITTED in ours.facts:
            text = f"groups, {case}: records delivered twice, of those uncommitted"
            results.limit(text, ours.facts[TWICE], ours.facts[UNCOMMITTED])


def _chart(
    results: Results, kind: str, value: Callable[[Cell], float], *, spread: bool = False
) -> Chart:
    cases = list(dict.fromkeys(each.case for each in results.cells))
    names = dict.fromkeys(each.contender for each in results.cells)
    return Chart(
        name=f"groups-{kind}",
        title=CHARTS[kind],
        kind="bars",
        unit="s",
        series=results.series(cases, names, value, spread=spread),
        groups=cases,
    )
