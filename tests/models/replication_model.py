"""Replication of one partition as a model that is explored whole in small sizes, and walked in larger ones.

ZooKeeper holds the partition's state {leader, leader epoch, ISR}; its version is the partition epoch.
Every write there is one step, every read that a replica takes notice of another. The worst is assumed:

- The controller designates any live member of the ISR at any time, whether the leader lives or not.
- Who begins to lead takes any other replicas out of the ISR by that.
- Replicas act on old reads: any activation that is not older than what they have on disk.
- A leader whose session has ended goes on, and so do its writes, which only their versions refuse.
- A crash keeps what is on disk; without the rule that a record counts only there, any suffix is lost.

A fetch and its answer are one step. There is no log start, no reassignment and no transaction.
`docs/replication.md` explains the protocol in words; RULES names what each mutation takes away.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

NOBODY: Final = -1
NOTHING: Final = -1
"""No acknowledged position, no proposed ISR, no version."""

RULES: Final = {
    "clean election": "only a live member of the ISR is designated",
    "durable before counted": "a record counts once it is on disk",
    "ISR by compare-and-set": "the ISR is written on condition of the version that is known",
    "removed counts until written": "who leaves the ISR counts until the write is known to be done",
    "joining counts before written": "who joins the ISR counts before the write is sent",
    "epoch start": "who joins the ISR has all that the leader had when its epoch began",
    "cut at the common point": "a follower cuts where its log leaves the leader's, not at its high watermark",
    "activation": "a designated broker leads once it has written the next leader epoch",
    "fetch in the epoch": "a leader answers followers of its own epoch only",
    "persisted epoch": "the highest epoch that a replica has acted in survives its crash",
    "resign, and only the ISR leads": "who reads that another is designated resigns, and who is not in "
    "the ISR does not activate; either alone is enough",
}

Record = tuple[int, int]  # leader epoch, number
Log = tuple[Record, ...]


class Activation(NamedTuple):
    """What was written when a leader epoch began; the ISR as bits."""

    leader: int
    isr: int
    version: int


class Partition(NamedTuple):
    """The partition's node; `activations[e - 1]` began epoch e."""

    leader: int
    epoch: int
    isr: int
    version: int
    activations: tuple[Activation, ...]


class Replica(NamedTuple):
    """`leader` is whom it takes for the leader, perhaps itself. Then `isr` and `version` are what it
    knows of the state, `proposed` an ISR that it is about to write, `acked[j]` the end of replica j's
    log as acknowledged in this epoch, `start` where its own log ended when the epoch began."""

    alive: bool
    log: Log
    high_watermark: int
    epoch: int
    leader: int
    isr: int
    version: int
    proposed: int
    acked: tuple[int, ...]
    start: int


class Budget(NamedTuple):
    crashes: int
    expiries: int


class State(NamedTuple):
    """`registered`: whose sessions live, as bits. `committed`: what some leader has ever called so."""

    partition: Partition
    registered: int
    replicas: tuple[Replica, ...]
    committed: Log
    records: int
    budget: Budget


class Step(NamedTuple):
    name: str
    state: State
    violation: str | None = None


class ReplicationModel:
    """`replicas` of one partition, which see at most `records` in a log and `epochs` leader epochs.

    `versions` bounds the writes of the controller and of ISRs. `without` names a rule of RULES that is
    taken away.
    """

    def __init__(
        self,
        records: int,
        epochs: int,
        budget: Budget,
        *,
        replicas: int = 3,
        min_in_sync: int = 2,
        versions: int = 10**9,
        without: str | None = None,
    ) -> None:
        assert without is None or without in RULES
        self.count = replicas
        self.records = records
        self.epochs = epochs
        self.budget = budget
        self.min_in_sync = min_in_sync
        self.versions = versions
        self._without = without
        self._nothing_acked = (NOTHING,) * replicas

    def initial(self) -> State:
        everybody = (1 << self.count) - 1
        replica = Replica(True, (), 0, 0, NOBODY, 0, NOTHING, NOTHING, self._nothing_acked, 0)
        return State(
            Partition(NOBODY, 0, everybody, 0, ()),
            everybody,
            (replica,) * self.count,
            (),
            0,
            self.budget,
        )

    def violation(self, state: State) -> str | None:
        """What is committed is in the log of every member of the ISR, or the next leader could lack it."""
        for offset, record in enumerate(state.committed):
            for number, replica in enumerate(state.replicas):
                if state.partition.isr >> number & 1 and replica.log[offset : offset + 1] != (
                    record,
                ):
                    return (
                        f"{record} at {offset} is not in the log of {number}, which is in the ISR"
                    )
        return None

    def steps(self, state: State) -> Iterator[Step]:
        """All that can happen next."""
        yield from self._elections(state)
        for number, replica in enumerate(state.replicas):
            if not replica.alive:
                yield self._restart(state, number)
                continue
            yield from self._faults(state, number)
            yield from self._roles(state, number)
            if replica.leader == number:
                yield from self._appends(state, number)
                yield from self._commits(state, number)
                yield from self._changes_of_the_isr(state, number)
            elif replica.leader != NOBODY:
                yield from self._fetches(state, number)

    def _has(self, rule: str) -> bool:
        return self._without != rule

    # -- the controller ---------------------------------------------------------------------------

    def _elections(self, state: State) -> Iterator[Step]:
        now = state.partition
        if now.epoch >= self.epochs or now.version >= self.versions:
            return
        live = now.isr & state.registered
        for number in range(self.count):
            if number != now.leader and live >> number & 1:
                yield Step(f"designate {number}", self._designated(state, number, now.isr))
        if not self._has("clean election") and not live:
            for number in range(self.count):
                if state.registered >> number & 1:
                    yield Step(f"UNCLEAN {number}", self._designated(state, number, 1 << number))

    def _designated(self, state: State, leader: int, isr: int) -> State:
        now = state.partition
        changed = now._replace(leader=leader, isr=isr, version=now.version + 1)
        if not self._has("activation"):
            changed = _begun(changed._replace(isr=isr & (state.registered | 1 << leader)))
        return state._replace(partition=changed)

    # -- faults -----------------------------------------------------------------------------------

    def _restart(self, state: State, number: int) -> Step:
        replica = state.replicas[number]
        if not self._has("persisted epoch"):
            replica = replica._replace(epoch=0)
        back = _with(state, number, self._without_role(replica)._replace(alive=True))
        return Step(f"restart {number}", back._replace(registered=state.registered | 1 << number))

    def _faults(self, state: State, number: int) -> Iterator[Step]:
        budget, replica = state.budget, state.replicas[number]
        away = state.registered & ~(1 << number)
        if budget.crashes:
            left = budget._replace(crashes=budget.crashes - 1)
            shortest = len(replica.log) if self._has("durable before counted") else 0
            for kept in range(shortest, len(replica.log) + 1):
                dead = self._without_role(replica)._replace(
                    alive=False, log=replica.log[:kept], high_watermark=0
                )
                after = _with(state, number, dead)._replace(registered=away, budget=left)
                lost = len(replica.log) - kept
                yield Step(f"CRASH {number}" + (f" losing {lost}" if lost else ""), after)
        if not state.registered >> number & 1:
            back = state._replace(registered=state.registered | 1 << number)
            yield Step(f"register {number} again", back)
        elif budget.expiries:
            left = budget._replace(expiries=budget.expiries - 1)
            yield Step(f"EXPIRE {number}", state._replace(registered=away, budget=left))

    def _without_role(self, replica: Replica) -> Replica:
        return replica._replace(
            leader=NOBODY,
            isr=0,
            version=NOTHING,
            proposed=NOTHING,
            acked=self._nothing_acked,
            start=0,
        )

    # -- roles ------------------------------------------------------------------------------------

    def _roles(self, state: State, number: int) -> Iterator[Step]:
        now, replica = state.partition, state.replicas[number]
        leads = replica.leader == number
        may_lead = now.isr >> number & 1 or not self._has("resign, and only the ISR leads")
        if (
            self._has("activation")
            and now.leader == number
            and now.epoch < self.epochs
            and may_lead
        ):
            if not (leads and replica.epoch == now.epoch):
                for isr in self._activated_isrs(now.isr, number):
                    active = _begun(now._replace(isr=isr, version=now.version + 1))
                    leading = self._leading(replica, active.epoch, active.activations[-1])
                    after = _with(state, number, leading)._replace(partition=active)
                    name = f"activate {number} in {active.epoch}"
                    is_usual = isr == now.isr & (state.registered | 1 << number)
                    yield Step(name if is_usual else f"{name} with {isr:03b}", after)
        first = max(replica.epoch, 1) if replica.leader == NOBODY else replica.epoch + 1
        for epoch in range(first, now.epoch + 1):
            activation = now.activations[epoch - 1]
            if activation.leader != number:
                following = self._following(replica, epoch, activation.leader)
                name = f"follow {number} of {activation.leader} in {epoch}"
                yield Step(name, _with(state, number, following))
            elif not self._has("activation"):
                leading = self._leading(replica, epoch, activation)
                yield Step(f"lead {number} in {epoch}", _with(state, number, leading))
        if leads and replica.epoch == now.epoch and now.version > replica.version:
            if now.leader == number or not self._has("resign, and only the ISR leads"):
                knows = replica._replace(isr=now.isr, version=now.version, proposed=NOTHING)
                yield Step(f"adopt {number}", _with(state, number, knows))
            else:
                yield Step(f"resign {number}", _with(state, number, self._without_role(replica)))

    def _activated_isrs(self, isr: int, leader: int) -> list[int]:
        """The ISR with which a leader may begin: what of it is registered, by an old view."""
        others = isr & ~(1 << leader)
        return [isr & ~gone for gone in range(others + 1) if gone & ~others == 0]

    def _leading(self, replica: Replica, epoch: int, activation: Activation) -> Replica:
        return replica._replace(
            epoch=epoch,
            leader=activation.leader,
            isr=activation.isr,
            version=activation.version,
            proposed=NOTHING,
            acked=self._nothing_acked,
            start=len(replica.log),
        )

    def _following(self, replica: Replica, epoch: int, leader: int) -> Replica:
        log = replica.log
        if not self._has("cut at the common point"):
            log = log[: replica.high_watermark]
        return self._without_role(replica)._replace(log=log, epoch=epoch, leader=leader)

    # -- as the leader ----------------------------------------------------------------------------

    def _appends(self, state: State, number: int) -> Iterator[Step]:
        replica = state.replicas[number]
        if len(replica.log) < self.records:
            longer = replica._replace(log=(*replica.log, (replica.epoch, state.records)))
            after = _with(state, number, longer)._replace(records=state.records + 1)
            yield Step(f"append {number}", after)

    def _commits(self, state: State, number: int) -> Iterator[Step]:
        replica, at = state.replicas[number], state.replicas[number].high_watermark
        if at >= len(replica.log) or replica.isr.bit_count() < self.min_in_sync:
            return
        counts = self._maximal_isr(replica)
        others = (each for each in range(self.count) if counts >> each & 1 and each != number)
        if not all(replica.acked[each] > at for each in others):
            return
        record, committed, violation = replica.log[at], state.committed, None
        if len(committed) > at:
            if committed[at] != record:
                violation = f"{committed[at]} and {record} are both committed at {at}"
        else:
            committed = (*committed, record)
        after = _with(state, number, replica._replace(high_watermark=at + 1))
        yield Step(f"commit {number} to {at + 1}", after._replace(committed=committed), violation)

    def _maximal_isr(self, replica: Replica) -> int:
        """Who must have a record: all that may be in the ISR."""
        if replica.proposed == NOTHING:
            return replica.isr
        shrinks = replica.proposed & ~replica.isr == 0
        if shrinks and not self._has("removed counts until written"):
            return replica.proposed
        if not shrinks and not self._has("joining counts before written"):
            return replica.isr
        return replica.isr | replica.proposed

    def _changes_of_the_isr(self, state: State, number: int) -> Iterator[Step]:
        now, replica = state.partition, state.replicas[number]
        if replica.proposed != NOTHING:
            is_current = now.version == replica.version
            if not self._has("ISR by compare-and-set"):
                is_current |= now.isr != replica.proposed
            if is_current:
                written = now._replace(isr=replica.proposed, version=now.version + 1)
                yield Step(f"write ISR {number}", state._replace(partition=written))
            return
        if now.version >= self.versions:
            return
        enough = max(replica.high_watermark, replica.start if self._has("epoch start") else 0)
        for other in range(self.count):
            if other == number:
                continue
            if replica.isr >> other & 1:
                proposal = replica._replace(proposed=replica.isr & ~(1 << other))
                yield Step(f"shrink {number} by {other}", _with(state, number, proposal))
            elif replica.acked[other] >= enough:
                proposal = replica._replace(proposed=replica.isr | 1 << other)
                yield Step(f"expand {number} by {other}", _with(state, number, proposal))

    # -- as a follower ----------------------------------------------------------------------------

    def _fetches(self, state: State, number: int) -> Iterator[Step]:
        replica = state.replicas[number]
        leader = state.replicas[replica.leader]
        is_fenced = leader.epoch != replica.epoch and self._has("fetch in the epoch")
        if not leader.alive or leader.leader != replica.leader or is_fenced:
            return
        common = len(replica.log)
        if self._has("cut at the common point"):
            common = _common(replica.log, leader.log)
        if common < len(replica.log):
            high_watermark = min(replica.high_watermark, common)
            shorter = replica._replace(log=replica.log[:common], high_watermark=high_watermark)
            yield Step(f"cut {number} to {common}", _with(state, number, shorter))
            return
        end = len(replica.log)
        longer = replica.log + leader.log[end : end + 1]
        high_watermark = min(leader.high_watermark, len(longer))
        acked = (*leader.acked[:number], end, *leader.acked[number + 1 :])
        after = _with(state, number, replica._replace(log=longer, high_watermark=high_watermark))
        after = _with(after, replica.leader, leader._replace(acked=acked))
        if after.replicas != state.replicas:
            yield Step(f"fetch {number} of {replica.leader}", after)


def _begun(partition: Partition) -> Partition:
    """The next leader epoch, with the ISR as it is."""
    activation = Activation(partition.leader, partition.isr, partition.version)
    return partition._replace(
        epoch=partition.epoch + 1, activations=(*partition.activations, activation)
    )


def _common(mine: Log, its: Log) -> int:
    """Up to where two logs are the same."""
    at = 0
    while at < min(len(mine), len(its)) and mine[at] == its[at]:
        at += 1
    return at


def _with(state: State, number: int, replica: Replica) -> State:
    replicas = state.replicas
    return state._replace(replicas=(*replicas[:number], replica, *replicas[number + 1 :]))
