"""What a broker that ZooKeeper does not answer asks the others."""

from types import SimpleNamespace
from typing import Any

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.replication.session_loss import TOPICS_AT_ONCE, SessionLoss
from folkmoot.protocol.errors import ResponseTooLarge


def test_topics_whose_answer_is_too_large_are_asked_for_fewer_at_a_time_until_all_were() -> None:
    topics = [f"t{number:03}" for number in range(TOPICS_AT_ONCE)]
    answered: set[str] = set()

    def ask(broker: int, api: object, request: Any, done: Any) -> None:
        if len(request.topics) > 30:
            done(SimpleNamespace(error=ResponseTooLarge("ask for less at a time")))
        else:
            answered.update(request.topics)
            done(SimpleNamespace(error=None, response=SimpleNamespace(topics=[])))

    replicas: Any = SimpleNamespace(
        broker_id=1,
        live={1: None, 2: None, 3: None},
        topics=lambda: topics,
        fetcher=SimpleNamespace(ask=ask),
    )
    loss = SessionLoss(replicas, lambda: True)
    for _ in range(40):
        loss.task(Now(0.0, 0))
    assert answered == set(topics)
