"""A group that plans for what is new, while topics change faster than all of them are read."""

from collections import deque
from random import Random

from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.group.member_state import MemberSettings
from folkmoot.coordination import topics
from folkmoot.coordination.groups import planning
from folkmoot.coordination.zookeeper.execute import execute
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper, Request

TOPICS = 40
ANSWER = 0.01
CHANGES = 0.25


class Scene:
    """A member whose ZooKeeper answers one request each ANSWER seconds, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waiting: deque[Request] = deque()
        self.session: MemorySession | None = None
        self.ensemble = MemoryZooKeeper(clock=lambda: self.now, deliver=self.deliver)
        self.user = self.ensemble.connect(1e6)
        for number in range(TOPICS):
            execute(self.user, topics.create(f"t{number:04}", 1, [1]))
        settings = MemberSettings(group="g", pattern="t.*", session_timeout=6.0)
        self.member = Member(
            settings, self.connect, lambda: None, clock=lambda: self.now, random=Random(1)
        )
        self.member.open()

    def connect(self, _timeout: float) -> MemorySession:
        self.session = self.ensemble.connect(1e6)
        return self.session

    def deliver(self, request: Request) -> None:
        if request.session is self.session:
            self.waiting.append(request)
        else:
            request.execute()
            request.reply()

    def run(self, seconds: float, *, changing: bool) -> None:
        end, due = self.now + seconds, self.now
        while self.now < end:
            self.now += ANSWER
            if self.waiting:
                request = self.waiting.popleft()
                request.sent = self.now
                request.execute()
                request.reply()
            self.member.polls.polled_at = self.now
            self.member.run_once()
            self.member.notices.clear()
            if changing and self.now >= due:
                due = self.now + CHANGES
                execute(self.user, topics.configure("t0001", {"retention": f"{due:.2f}"}))


def test_new_topics_and_partitions_are_planned_while_another_topic_changes_all_the_time() -> None:
    scene = Scene()
    scene.run(8.0, changing=False)
    execute(scene.user, topics.add_partitions("t0000", 2, [1]))
    execute(scene.user, topics.create("tnew", 1, [1]))
    scene.run(12.0, changing=True)
    plan = execute(scene.user, planning.get("g")).plan
    assert plan.topics["t0000"].partitions == 2
    assert "tnew" in plan.topics
