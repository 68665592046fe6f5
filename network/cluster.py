"""A client's view of the whole cluster: which brokers there are, who leads what, and how to ask them."""

import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, NamedTuple, Protocol, Self

from folkmoot.network.client import ClientConfig, Connections, Reply, SupportsFileno
from folkmoot.network.leaderless import Leaderless, Waiting
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    ConfigError,
    FolkmootError,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    RequestTimeout,
    ResponseTooLarge,
    RetriableError,
    StaleTopicId,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import (
    MAX_ENTRIES,
    Api,
    BrokerInfo,
    InitProducerIdRequest,
    MetadataRequest,
    MetadataResponse,
    ReportDamageEntry,
    ReportDamageRequest,
    TopicMetadata,
)
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import TopicPartition

MAX_AGE: Final = 300.0
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0
DOUBT: Final = 2.0
"""So long a leader that says it is none is not believed in; then nobody has replaced it."""
METADATA_TIMEOUT: Final = 5.0
AVOID_FOR: Final = 2.0
SILENCE: Final = 1.0
"""A broker that owes an answer for so long may have been replaced: others are asked, every LOOK_PAUSE."""
LOOK_PAUSE: Final = 0.3
ID_PAUSE: Final = 0.1

_log = thread_log(__name__)
_MISPLACED = {
    *(NotLeader.code, UnknownTopicOrPartition.code, StaleTopicId.code),
    NotEnoughReplicasAfterAppend.code,  # another one may lead
}


class _Leader(NamedTuple):
    broker_id: int
    epoch: int
    isr: Sequence[int]
    replicas: Sequence[int]


class _Topic(NamedTuple):
    topic_id: str
    leaders: list[_Leader]


class Metadata:
    """What is known of brokers and topics, and when to ask again. No I/O, no clock.

    It holds the topics that somebody wants, and is *due* when it is older than `max_age`, when it
    was told that it must be wrong (`expire`) or asked for a partition that it does not know, and as
    long as a wanted topic, or the leader or an in-sync replica of one of its partitions, is not known (who
    registers a moment later may lead next), or the leader known has just said that it is none. Between
    two requests lies a pause that grows while answers do not help; while one is under way nothing is due.

    Wanted topics are asked for and no others: `at_a_time` in one request, half as many from then on
    when an answer would have been too large, and the rest as soon as the answer is there.

    An answer may come from a broker that knows less than another: a leader of an older epoch never
    replaces one of a newer epoch of the same topic id. A hint (the leader that a broker names when
    it is not the leader itself) counts at once, until the next answer, as long as nothing newer is known.

    `version` grows whenever what is known of brokers or topics changes, and only then: what was made
    of it is right as long as it is the same. One thread may call.
    """

    def __init__(self, listener: str = "client", max_age: float = MAX_AGE) -> None:
        self._listener = listener
        self._max_age = max_age
        self._brokers: dict[int, str] = {}
        self._racks: dict[int, str] = {}
        self._topics: dict[str, _Topic] = {}
        self._missing: dict[
            str, tuple[float, float]
        ] = {}  # since when that was said, and said last
        self._wanted: set[str] = set()
        self._rest: list[str] = []
        self._at_a_time = MAX_ENTRIES
        self._expired = False
        self._asked = False
        self._answered_at = -inf
        self._not_before = -inf
        self._unhelpful = 0.0
        self._doubted: dict[TopicPartition, tuple[_Leader, float]] = {}
        self.version = 0
        self.answers = 0
        """How many there were."""

    # -- what is known ------------------------------------------------------------------------------

    def addresses(self) -> list[str]:
        """Where brokers listen."""
        return list(self._brokers.values())

    def leader_address(self, partition: TopicPartition) -> str | None:
        """Where the leader listens; None if nobody leads now or it is not known yet."""
        leader = self._leader(partition)
        return None if leader is None else self._brokers.get(leader.broker_id)

    def nearest_address(self, partition: TopicPartition, rack: str) -> str | None:
        """Where an in-sync replica of that rack listens, else the leader, as `leader_address`."""
        leader = self._leader(partition)
        if leader is None or leader.broker_id not in self._brokers:
            return None
        near = [
            each for each in leader.isr if each in self._brokers and self._racks.get(each) == rack
        ]
        if not near or leader.broker_id in near:
            return self._brokers[leader.broker_id]
        return self._brokers[near[partition.partition % len(near)]]

    def leaderless(self) -> Waiting:
        """The partitions of wanted topics that nobody leads, as far as is known."""
        return {
            TopicPartition(name, number): tuple(leader.isr or leader.replicas)
            for name, topic in self._topics.items()
            for number, leader in enumerate(topic.leaders)
            if leader.broker_id not in self._brokers
        }

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The epoch of the leader known, or -1."""
        leader = self._leader(partition)
        return -1 if leader is None else leader.epoch

    def is_replicated(self, partition: TopicPartition) -> bool:
        """Whether it has several replicas; which of them are in sync may have changed since."""
        leader = self._leader(partition)
        return leader is not None and len(leader.replicas) > 1

    def topic_id(self, topic: str) -> str | None:
        self.want(topic)
        known = self._topics.get(topic)
        return None if known is None else known.topic_id

    def partitions(self, topic: str) -> range:
        """The partitions of a topic, none as long as it is not known."""
        self.want(topic)
        known = self._topics.get(topic)
        return range(0) if known is None else range(len(known.leaders))

    def has_moved(self, address: str, request: Any) -> bool:
        """Whether others lead what a request to that broker is about, in a newer epoch than it knew."""
        for entry in getattr(request, "entries", ()):
            known = self._topics.get(entry.topic)
            if known is not None and entry.partition < len(known.leaders):
                leader = known.leaders[entry.partition]
                where = self._brokers.get(leader.broker_id, address)
                if where != address and leader.epoch > getattr(entry, "leader_epoch", -1):
                    return True
        return False

    def is_missing(self, topic: str) -> bool:
        """Whether a broker has said, most recently, that the topic does not exist."""
        return topic in self._missing

    def gone(self, patience: float) -> list[str]:
        """Wanted topics that all answers of at least `patience` seconds have called missing."""
        return [each for each, (first, last) in self._missing.items() if last - first >= patience]

    def _leader(self, partition: TopicPartition) -> _Leader | None:
        self.want(partition.topic)
        known = self._topics.get(partition.topic)
        if known is None:
            return None
        if not 0 <= partition.partition < len(known.leaders):
            self.expire()  # whoever asks for it has heard that it was added
            return None
        return known.leaders[partition.partition]

    # -- what is wanted -----------------------------------------------------------------------------

    def want(self, topic: str) -> None:
        """Keep this topic known from now on. Every look-up wants its topic."""
        if topic not in self._wanted:
            self._wanted.add(topic)
            if self._rest:
                self._rest.append(topic)
            self._expired = True
            self._not_before = -inf  # what others miss is no reason for this one to wait

    def forget(self, topic: str) -> None:
        """Nobody needs this topic any more."""
        self._wanted.discard(topic)
        self._topics.pop(topic, None)
        self._missing.pop(topic, None)

    def expire(self) -> None:
        """Something that is known has proven wrong, or a broker is gone: ask again soon."""
        self._expired = True

    def due(self) -> float:
        """When to ask next."""
        if self._asked:
            return inf
        if self._expired:
            return self._not_before
        return max(self._not_before, self._answered_at + self._max_age)

    # -- what happens -------------------------------------------------------------------------------

    def ask(self, now: float) -> MetadataRequest:
        """The request to send now; then comes `update` or `fail`."""
        self._asked = True
        self._pause(now)
        topics = self._rest or sorted(self._wanted)
        self._rest = topics[self._at_a_time :]
        return MetadataRequest(topics[: self._at_a_time])

    def fail(self, now: float) -> None:
        """The request was not answered, or there was no broker to send it to."""
        self._asked = False
        self._expired = True
        self._rest = []
        self._unhelpful += 1
        self._pause(now)

    def ask_for_less(self, now: float) -> bool:
        """The answer would have been too large. False if it was asked for one topic."""
        self._asked, self._not_before, self._rest = False, now, []
        can_be_less = self._at_a_time > 1
        self._at_a_time = max(1, min(self._at_a_time, len(self._wanted)) // 2)
        return can_be_less

    def update(self, response: MetadataResponse, now: float) -> None:
        """Take an answer in."""
        self._asked = False
        self.answers += 1
        self._answered_at = now
        brokers = {
            broker.broker_id: broker.listeners[self._listener]
            for broker in response.brokers
            if self._listener in broker.listeners
        }
        # A broker that has just lost ZooKeeper may know of nobody; then what was known is better.
        if brokers:
            self._racks = {each.broker_id: each.rack for each in response.brokers}
        if brokers and brokers != self._brokers:
            self._brokers = brokers
            self.version += 1
        for topic in response.topics:
            self._take(topic, now)
        if self._rest:
            self._expired, self._not_before = True, now
            return
        self._expired = not self._is_complete() or self._is_doubted(now)
        # What exists has a leader soon: then the pauses grow by a fifth, else they double.
        exists = self._topics.keys() >= self._wanted
        self._unhelpful += 0.25 if exists else 1.0
        if not self._expired:
            self._unhelpful = 0.0

    def hint(self, partition: TopicPartition, broker: BrokerInfo, said_by: str) -> None:
        """A broker said that another one leads this partition. It knows better only where it was taken
        for the leader itself: what has been learned since, of a newer epoch, may be more."""
        known = self._topics.get(partition.topic)
        address = broker.listeners.get(self._listener)
        if known is None or address is None or partition.partition >= len(known.leaders):
            return
        former = known.leaders[partition.partition]
        if self._brokers.get(former.broker_id) != said_by or address == said_by:
            return
        self._brokers[broker.broker_id] = address
        known.leaders[partition.partition] = former._replace(broker_id=broker.broker_id)
        self.version += 1

    def doubt(self, partition: TopicPartition, said_by: str, now: float) -> None:
        """A broker that was taken for the leader said that it is not, or is about not to be: for a
        while an answer that names it again, in the same epoch, does not help."""
        self._expired = True
        known = self._topics.get(partition.topic)
        if known is not None and partition.partition < len(known.leaders):
            leader = known.leaders[partition.partition]
            if self._brokers.get(leader.broker_id) == said_by:
                self._doubted[partition] = leader, now + DOUBT

    def _is_doubted(self, now: float) -> bool:
        for partition, (leader, until) in list(self._doubted.items()):
            known = self._topics.get(partition.topic)
            leaders = () if known is None else known.leaders[partition.partition :]
            if until <= now or not leaders or leaders[0][:2] != leader[:2]:
                del self._doubted[partition]
        return bool(self._doubted)

    def _take(self, topic: TopicMetadata, now: float) -> None:
        if topic.topic not in self._wanted:
            return
        numbers = [partition.partition for partition in topic.partitions]
        former = self._topics.get(topic.topic)
        if topic.error == UnknownTopicOrPartition.code:
            self.version += topic.topic not in self._missing
            self._missing[topic.topic] = self._missing.get(topic.topic, (now, now))[0], now
            self._topics.pop(topic.topic, None)
        elif topic.error == 0 and numbers and sorted(numbers) == list(range(len(numbers))):
            self._missing.pop(topic.topic, None)
            leaders = {
                each.partition: _Leader(each.leader, each.leader_epoch, each.isr, each.replicas)
                for each in topic.partitions
            }
            if former is not None and former.topic_id == topic.topic_id:
                for number, leader in enumerate(former.leaders):
                    if number in leaders and leaders[number].epoch < leader.epoch:
                        leaders[number] = leader
            known = _Topic(topic.topic_id, [leaders[number] for number in range(len(numbers))])
            self.version += known != former
            self._topics[topic.topic] = known

    def _is_complete(self) -> bool:
        return all(
            topic in self._topics
            and all(
                leader.broker_id in self._brokers and self._racks.keys() >= {*leader.isr}
                for leader in self._topics[topic].leaders
            )
            for topic in self._wanted
        )

    def _pause(self, now: float) -> None:
        growth: float = 2 ** min(self._unhelpful, 10)
        self._not_before = now + min(LONGEST_PAUSE, FIRST_PAUSE * growth)


class ClusterConfig(ClientConfig, Protocol):
    """What the configuration of every client says about its way to brokers."""

    @property
    def listener(self) -> str: ...


class Cluster:
    """`Connections` that know where to send.

    Metadata is fetched inside `poll`, whenever the cache says that it is due, from any broker that
    was not unreachable within the last AVOID_FOR seconds, nor for metadata since there was any. When
    there is none, `discover` is called for addresses (it reads ZooKeeper, or has fixed ones); it runs
    on the owner's thread, must not wait for long, and returns None while it looks. Until it has answered
    once, an error that will not go away is raised: an address or a listener is misspelt. Later any error is
    waited out. Producer ids are fetched in the same way. Replies to these requests are not given out; all
    others are, after what they say about leaders was taken in: an answer that names the leader counts at
    once, a wrong leader or a lost broker makes the cache ask again.

    A broker that owes an answer for SILENCE (its process stands still, the network is cut, or its followers
    have left it) may have been replaced: metadata is asked for, of another one if there is one. What is under
    way to it ends with BrokerUnreachable once metadata names it no more, or another leader in a newer epoch.

    Nothing is sent again here: whoever made a request decides. `trouble` is why there is no metadata,
    or None. One thread owns it, `close` included.
    """

    def __init__(
        self,
        connections: Connections,
        discover: Callable[[], Sequence[str] | None],
        *,
        listener: str = "client",
        clock: Callable[[], float] = time.monotonic,
        found: Sequence[str] | None = None,
    ) -> None:
        """`found`: what `discover` has answered already, if it was asked."""
        self._connections = connections
        self.send = connections.send
        self.is_asked = connections.is_asked
        self._listener = listener
        self._metadata = metadata = Metadata(listener)
        self.leader_address = metadata.leader_address
        self.nearest_address = metadata.nearest_address
        self.leader_epoch = metadata.leader_epoch
        self.is_replicated = metadata.is_replicated
        self.topic_id = metadata.topic_id
        self.partitions = metadata.partitions
        self.is_missing = metadata.is_missing
        self.gone = metadata.gone
        self.want = metadata.want
        self.forget = metadata.forget
        self.refresh = metadata.expire
        self._leaderless = Leaderless()
        self._discover = discover
        self._clock = clock
        self._found = list(found or ())
        self._has_discovered = found is not None
        self._avoid: dict[str, float] = {}
        # Where metadata was not to be had since it last was: without this, addresses of brokers that
        # have all moved would be tried by turns for ever, each while the others are avoided.
        self._failed: set[str] = set()
        self._silent: set[str] = set()  # all brokers that were known when none of them answered
        self._slack = 1.0  # grows while no broker answers in time: all may be slow
        self._asking = -1
        self._late: dict[str, dict[int, Any]] = {}
        self._look_at = -inf
        self._wants_id = False
        self._producer_id: int | None = None
        self._asking_for_id = -1
        self._id_at = -inf
        self.version = 0
        """Grows whenever what is known of brokers or topics changes."""
        self.trouble: FolkmootError | None = None
        self.producer_id_trouble: FolkmootError | None = None
        """Why no broker has given a producer id yet."""

    @classmethod
    def of(
        cls,
        config: ClusterConfig,
        discover: Callable[[], Sequence[str] | None],
        found: Sequence[str] | None = None,
        poller: Any = None,
    ) -> Self:
        """The cluster as a client with this configuration sees it. `poller`: what its owner waits with."""
        return cls(Connections.of(config, poller), discover, listener=config.listener, found=found)

    @property
    def leaderless(self) -> Waiting:
        """The partitions of wanted topics that nobody leads, and whom they wait for. From any thread."""
        return self._leaderless.waiting

    def addresses(self) -> list[str]:
        """Where the brokers listen that are known."""
        return list(self._metadata.addresses() or self._found)

    @property
    def answers(self) -> int:
        """How often brokers have told of the topics that are wanted."""
        return self._metadata.answers

    # -- requests -----------------------------------------------------------------------------------

    def producer_id(self) -> int | None:
        """An id that no other producer has had or will have.

        None while a broker is asked for it: poll, then call again.
        """
        number, self._producer_id = self._producer_id, None
        self._wants_id = number is None
        return number

    def report_damage(
        self, address: str, partition: TopicPartition, topic_id: str, offset: int
    ) -> None:
        """Tell the broker there that it sent no whole batch where `offset` should be.

        Nobody waits for the answer, or minds if the report is lost: the next reader will report.
        """
        entry = ReportDamageEntry(partition.topic, topic_id, partition.partition, offset)
        with suppress(FolkmootError):
            self.send(address, Api.REPORT_DAMAGE, ReportDamageRequest([entry]))

    def poll(self, timeout: float, wake: SupportsFileno | None = None) -> list[Reply]:
        """Replies, as `Connections.poll`; ends early, with nothing, when its own were dealt with."""
        try:
            return self._poll(timeout, wake)
        except BaseException:  # a node that is illegible, or Ctrl-C
            # An answer may be lost with it: none is waited for.
            self._asking = self._asking_for_id = -1
            self._metadata.fail(self._clock())
            raise

    def _poll(self, timeout: float, wake: SupportsFileno | None) -> list[Reply]:
        now = self._clock()
        owed = self._connections.owed
        if (owed or self._late) and self._look_at <= now:
            self._look_for_silence(now)
        if self._metadata.due() <= now:
            self._ask(now)
        if self._id_due() <= now:
            self._ask_for_id(now)
        wait = min(timeout, max(0.0, self._due() - now))
        replies = []
        for reply in self._connections.poll(wait, wake):
            if reply.correlation_id == self._asking:
                self._answered(reply)
            elif reply.correlation_id == self._asking_for_id:
                self._id_answered(reply)
            else:
                self._learn(reply)
                replies.append(reply)
        return replies

    def due(self) -> float:
        """When `poll` has something to do though nothing comes."""
        return min(self._due(), self._connections.next_event())

    def _due(self) -> float:
        look_at = self._look_at if self._connections.owed else inf
        return min(self._metadata.due(), self._id_due(), look_at)

    def close(self, *, linger: float = 0.0) -> None:
        """As `Connections.close`."""
        self._connections.close(linger=linger)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- inside -------------------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        request = self._metadata.ask(now)
        address = self._reachable(now) or self._discovered(now)
        if address is None:
            self._metadata.fail(now)
            return
        try:
            self._asking = self.send(address, Api.METADATA, request, timeout=self._wait(address))
        except RetriableError as error:
            self._fail(address, error)

    def _look_for_silence(self, now: float) -> None:
        """Ask about brokers that owe answers, and give up what is under way to those that were replaced."""
        known = self._metadata.addresses() or self._found
        self._look_at = now + (LOOK_PAUSE if len(known) > 1 else SILENCE)
        self._late = self._connections.late(now - SILENCE)
        if self._late:
            self._metadata.expire()
        for address, requests in self._late.items():
            error = BrokerUnreachable(f"broker {address} did not answer, and was replaced")
            for number, request in requests.items():
                if address not in known or self._metadata.has_moved(address, request):
                    self._connections.give_up(address, number, error)

    def _wait(self, address: str) -> float:
        """How long (s) a broker may take to answer: where others can be asked, not long at first, and least
        if it owes answers."""
        if len(self.addresses()) < 2:
            return METADATA_TIMEOUT
        return min(
            METADATA_TIMEOUT, self._slack * (LOOK_PAUSE if address in self._late else SILENCE)
        )

    def _id_due(self) -> float:
        """When to ask a broker for a producer id."""
        return self._id_at if self._wants_id and self._asking_for_id < 0 else inf

    def _ask_for_id(self, now: float) -> None:
        """Ask any broker that was found; where there is none, `trouble` says why."""
        self._id_at = now + ID_PAUSE
        address = self._reachable(now)
        if address is not None:
            request = InitProducerIdRequest()
            with suppress(RetriableError):
                self._asking_for_id = self.send(
                    address, Api.INIT_PRODUCER_ID, request, timeout=self._wait(address)
                )

    def _id_answered(self, reply: Reply) -> None:
        self._asking_for_id = -1
        self._learn(reply)
        if isinstance(reply.error, RequestTimeout):
            self._slack *= 2.0
        if reply.error is None:
            self._producer_id, self._wants_id = reply.response.producer_id, False
            self._id_at = -inf
        elif str(self.producer_id_trouble) != str(reply.error):
            _log.warning("no producer id yet: %s", reply.error)
        self.producer_id_trouble = reply.error

    def _reachable(self, now: float) -> str | None:
        """Some broker, not one that has just failed. What was found counts until metadata names brokers:
        one that is gone for good is found for ever where addresses were given."""
        known = set(self._metadata.addresses() or self._found) - self._failed
        usable = sorted(address for address in known if self._avoid.get(address, now) <= now)
        prompt = [address for address in usable if address not in self._late]
        if not prompt and len(self._metadata.addresses()) > 1:
            prompt = usable
        return random.choice(prompt) if prompt else None

    def _discovered(self, now: float) -> str | None:
        """Some broker that was found just now, even if it has just failed, if there is no other."""
        try:
            found = self._discover()
        except FolkmootError as error:
            if not self._has_discovered and not isinstance(error, RetriableError):
                raise
            self._note(error)
            return None
        if found is None:
            return None
        self._has_discovered = True
        self._found = list(found)
        if not self._found:
            self._note(BrokerUnreachable("no broker is registered: is one running?"))
            return None
        if self._failed.issuperset(self._found):
            # All have failed, these too: any that was known may be back before them, so each has a turn.
            self._failed.clear()
        fresh = [address for address in self._found if address not in self._failed]
        usable = [address for address in fresh if self._avoid.get(address, now) <= now]
        prompt = [address for address in usable if address not in self._late]
        return random.choice(prompt or usable or fresh)

    def _answered(self, reply: Reply) -> None:
        self._asking = -1
        if reply.error is not None:
            is_too_large = isinstance(reply.error, ResponseTooLarge)
            if not (is_too_large and self._metadata.ask_for_less(self._clock())):
                self._fail(reply.address, reply.error)
            return
        self._avoid.pop(reply.address, None)
        names = {name for each in reply.response.brokers for name in each.listeners}
        if names and self._listener not in names:
            self._metadata.fail(self._clock())
            have = ", ".join(sorted(names))
            self._note(
                ConfigError(f"no broker has a listener {self._listener!r}: they have {have}")
            )
            return
        self._metadata.update(reply.response, self._clock())
        self._leaderless.update(self._metadata.leaderless(), self._clock())
        self._failed.clear()
        self._silent.clear()
        self._slack = 1.0
        self._id_at = -inf
        if self.version != self._metadata.version:
            self.version, self._look_at = self._metadata.version, -inf
        self.trouble = None

    def _fail(self, address: str, error: FolkmootError) -> None:
        now = self._clock()
        if isinstance(error, RequestTimeout):
            self._slack *= 2.0
        self._avoid[address] = now + AVOID_FOR
        self._failed.add(address)
        self._metadata.fail(now)
        known = {*self._metadata.addresses(), *self._found}
        if len(known) > 1 and known <= self._failed:
            self._silent = known
            said = ", ".join(sorted(known))
            error = BrokerUnreachable(f"no broker answers, of {said}: at last, {error}")
        elif known <= self._silent and isinstance(self.trouble, BrokerUnreachable):
            return  # one of them again: what is known of all says more
        # Where others are asked next, one that is slow is no trouble yet.
        self._note(error, logging.DEBUG if known - self._failed else logging.WARNING)

    def _note(self, error: FolkmootError, level: int = logging.WARNING) -> None:
        if self.trouble is None or str(self.trouble) != str(error):
            _log.log(level, "no metadata: %s", error)
        self.trouble = error

    def _learn(self, reply: Reply) -> None:
        if isinstance(reply.error, BrokerUnreachable):
            self._avoid[reply.address] = self._clock() + AVOID_FOR
            self._metadata.expire()
        elif isinstance(reply.error, RequestTimeout):
            self._metadata.expire()
        elif reply.error is None and reply.response is not None:
            self._avoid.pop(reply.address, None)
            for result in getattr(reply.response, "results", ()):
                if result.error in _MISPLACED:
                    where = TopicPartition(result.topic, result.partition)
                    self._metadata.doubt(where, reply.address, self._clock())
                    if result.leader is not None:
                        self._metadata.hint(where, result.leader, reply.address)
                        self.version = self._metadata.version
