"""What a member holds, and the writes made under it: commits and releases, one at a time.

Every write under a claim moves the fence that the next write stands on, so at most one commit is
under way, and nothing is released while one is. An answer about a claim that is no longer held is
ignored: ZooKeeper has decided by the fence already. What the consumer says names the epoch that it
speaks of, and counts for that claim only. Pure: effects are appended to the list given.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from folkmoot.consumers.group.events import (
    Assigned,
    Commit,
    CommitOffsets,
    Committed,
    Drained,
    Effect,
    Lost,
    ReleasePartition,
    Revoking,
    VerifyOwner,
)
from folkmoot.coordination.groups.ownership import Claim, Fenced
from folkmoot.protocol.records import TopicPartition


@dataclass(slots=True)
class _Held:
    """A partition that is ours until it is released or fenced.

    held → revoking (the consumer was asked to finish) → drained (it has) → releasing (the last write).
    What is declined, or lost in silence, is drained at once.
    """

    claim: Claim
    revoking: bool = False
    drained: bool = False
    releasing: bool = False
    final_offset: int | None = None


class Holdings:
    """The partitions held by one incarnation of a member."""

    def __init__(self, effects: list[Effect]) -> None:
        self.fenced_commits = 0
        self.lost = 0
        """Partitions that went without being given up."""
        self.forgotten = ""
        """Why the last session, or the place in it, was given up; nothing if none was."""
        self._effects = effects
        self._held: dict[TopicPartition, _Held] = {}
        self._asked: list[Commit] = []
        self._committing: CommitOffsets | None = None

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._held

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(tuple(self._held))

    @property
    def idle(self) -> bool:
        """Nothing is held and no write is under way or asked for."""
        return not self._held and self._committing is None

    @property
    def is_letting_go(self) -> bool:
        """Something is about to be released."""
        return any(held.revoking for held in self._held.values())

    def topic_id(self, partition: TopicPartition) -> str:
        """The id of the topic that was claimed."""
        return self._held[partition].claim.state.topic_id

    def add(self, partition: TopicPartition, claim: Claim) -> None:
        """A claim was won and is wanted: tell the consumer."""
        self._held[partition] = _Held(claim)
        state = claim.state
        self._effects.append(Assigned(partition, state.topic_id, state.offset, state.epoch))

    def decline(self, partition: TopicPartition, claim: Claim) -> None:
        """A claim was won but is no longer wanted: nobody was told, so nobody needs to be asked."""
        self._held[partition] = _Held(claim, revoking=True, drained=True)
        self.release_drained()

    def revoke(self, partition: TopicPartition) -> None:
        """Ask the consumer, once, to finish with a partition."""
        held = self._held[partition]
        if not held.revoking:
            held.revoking = True
            self._effects.append(Revoking(partition))

    def revoke_all(self) -> None:
        for partition in self:
            self.revoke(partition)

    def drained(self, event: Drained) -> None:
        """The consumer has finished with a partition that is being revoked.

        Not if it speaks of an earlier claim: then it has not heard of this one yet.
        """
        held = self._held.get(event.partition)
        if held is None or held.claim.state.epoch != event.epoch:
            return
        if held.revoking and not held.drained:
            held.drained = True
            held.final_offset = event.offset
            self.release_drained()

    def release_drained(self) -> None:
        """Let go of what is drained, after all commits that were asked for before."""
        if self._committing is not None:
            return
        for partition, held in self._held.items():
            if held.drained and not held.releasing:
                held.releasing = True
                self._effects.append(ReleasePartition(partition, held.claim, held.final_offset))

    def released(self, task: ReleasePartition) -> None:
        if self._holds(task.partition, task.held):
            del self._held[task.partition]

    def commit(self, asked: Commit) -> None:
        """Write offsets as soon as the last commit is answered."""
        self._asked.append(asked)
        self._commit_next()

    def committed(self, task: CommitOffsets, answers: dict[TopicPartition, Claim | Fenced]) -> None:
        """Adopt the new fences; what was fenced is lost."""
        self._committing = None
        done: dict[TopicPartition, int] = {}
        refused: set[TopicPartition] = set()
        for partition, answer in answers.items():
            before, offset = task.offsets[partition]
            if isinstance(answer, Claim):
                done[partition] = offset
                if self._holds(partition, before):
                    self._held[partition].claim = answer
            else:
                refused.add(partition)
                self.fenced_commits += 1
                if self._holds(partition, before):
                    self._drop(partition, "a commit was fenced")
        self._effects.append(Committed(task.token, done, frozenset(refused)))
        self._commit_next()
        self.release_drained()

    def verify(self, partition: TopicPartition) -> None:
        """Look whether the owner's node is still ours; one being released goes anyway."""
        held = self._held[partition]
        if not held.releasing:
            self._effects.append(VerifyOwner(partition, held.claim))

    def verified(self, task: VerifyOwner, ours: bool) -> None:
        if not ours and self._holds(task.partition, task.held):
            self._drop(task.partition, "another member took it over, or its offset was reset")

    def let_go_of_all(self, reason: str) -> None:
        """Nobody answers: stop at once with everything; no commit that waits is begun any more.

        The session may live all the same, and the owners' nodes with it. So they are released, under
        the fence as ever, as soon as somebody answers: whoever is to own next need not wait, and
        nobody else would ever remove the node of a partition that is gone with its topic.
        """
        for partition, held in self._held.items():
            self._tell(partition, held, reason)
            held.revoking = held.drained = True
        self._refuse_asked()
        self.release_drained()

    def forget(self, reason: str) -> None:
        """The session is over, and the owners' nodes with it: no answer of it will come."""
        self.forgotten = reason
        for partition in self:
            self._drop(partition, reason)
        self._refuse_asked()
        if self._committing is not None:
            refused = frozenset(self._committing.offsets)
            self._effects.append(Committed(self._committing.token, {}, refused))
            self._committing = None

    def _refuse_asked(self) -> None:
        for asked in self._asked:
            self._effects.append(Committed(asked.token, {}, frozenset(asked.offsets)))
        self._asked.clear()

    def _commit_next(self) -> None:
        while self._asked and self._committing is None:
            asked = self._asked.pop(0)
            ours = {
                partition: (self._held[partition].claim, offset)
                for partition, (epoch, offset) in asked.offsets.items()
                if self._may_commit(partition, epoch)
            }
            refused = frozenset(asked.offsets) - frozenset(ours)
            if refused or not ours:
                self._effects.append(Committed(asked.token, {}, refused))
            if ours:
                self._committing = CommitOffsets(asked.token, ours)
                self._effects.append(self._committing)

    def _may_commit(self, partition: TopicPartition, epoch: int) -> bool:
        """The claim under which the consumer did the work still stands, and is not being given up."""
        held = self._held.get(partition)
        return held is not None and held.claim.state.epoch == epoch and not held.releasing

    def _holds(self, partition: TopicPartition, claim: Claim) -> bool:
        held = self._held.get(partition)
        return held is not None and held.claim.state.epoch == claim.state.epoch

    def _drop(self, partition: TopicPartition, reason: str) -> None:
        self._tell(partition, self._held.pop(partition), reason)

    def _tell(self, partition: TopicPartition, held: _Held, reason: str) -> None:
        """Of its loss, unless it was given up already."""
        if not held.drained:
            self.lost += 1
            self._effects.append(Lost(partition, reason))
