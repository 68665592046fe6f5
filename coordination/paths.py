"""Every znode path of a cluster, below the chroot of its connect string.

| path                                    | kind       | example contents (JSON)                                     | written by      | watched by              |
|-----------------------------------------|------------|-------------------------------------------------------------|-----------------|-------------------------|
| /layout                                 | persistent | {"version": 1}; layout.py                                   | the first session on the chroot | –       |
| /brokers/ids/<id>                       | ephemeral  | {"listeners": {"client": "10.0.0.1:9190"}, "nonce": "9f…", "directory": "d3…", "epoch": 3} | the broker | brokers, the controller |
| /brokers/epochs/<id>                    | persistent | nothing; its version grows with each registration of the broker, in the same transaction: the broker's epoch | the broker | – |
| /brokers/drained/<id>                   | persistent | nothing: no replicas are placed on that broker              | drain commands  | –                       |
| /controller/current                     | ephemeral  | {"broker": 1, "nonce": "9f…", "epoch": 7}; controllers.py   | who is elected  | those that stand for election |
| /controller/epoch                       | persistent | nothing; its version grows with each election, in the same transaction: the controller's epoch | who is elected | – |
| /partitions/<topic id>/<p>              | persistent | {"leader": 1, "leader_epoch": 4, "isr": [1, 2], "controller_epoch": 7, "active": true}; partition_states.py | the controller; the leader, compare-and-set | brokers |
| /topics/<topic>                         | persistent | {"id": "6b…", "partitions": [[1], [2], [3]], "config": {}, "reassignments": {}, "with_epochs": [], "reassigned": 0}; topics.py | topic commands; the controller, which ends reassignments | brokers, members, the controller |
| /groups                                 | persistent | nothing; its version grows when offsets are deleted         | group deletions | –                       |
| /groups/<group>/ids/<member>            | ephemeral, sequential | {"topics": ["flights"], "host": "h", "revoke_timeout": 2.0, "assignors": ["sticky"]} | the member | members (children) |
| /groups/<group>/plan                    | persistent | plan.py: {"protocol": 1, "generation": 7, "members": […], "topics": {…}, …} | any member, compare-and-set | members  |
| /groups/<group>/owners/<topic>/<p>      | ephemeral  | {"member": "m-0000000003", "nonce": "a1…", "epoch": 4, "hand_over": 302.0} | the owner | the owner; the next one |
| /groups/<group>/offsets/<topic>/<p>     | persistent | {"offset": 512, "epoch": 4, "member": "m-…", "nonce": "a1…", "topic_id": "6b…", "reset": "c0…"} | the owner, fenced by version; resets | – |
| /groups/<group>/events/<entry>          | persistent, sequential | history.py: a rebalance or a reset                 | planners, administrators | –                |
| /groups/<group>/events/left-<member>    | persistent | nothing: it left in order; until the next plan is noted     | members that leave | –                    |
| /groups/<group>/events/gone-<member>    | persistent | how a member went otherwise; until the next plan is noted   | members, guardians of those that died | – |
| /producers/ids                          | persistent | {"next": 4000}                                              | producers, compare-and-set | –                |
| /producers/names/<name>                 | persistent | {"producer_id": 7, "epoch": 2, "round": 41, "attempt": "9f…", "begins": {"flights": [[500, 7019]]}}; producer_takeovers.py | who takes the name over, compare-and-set | – |
| /schemas/ids/<id, ten digits>           | persistent | {"schema": "{…}"}                                           | any client, in one transaction | –        |
| /schemas/texts/<sha-256 of the text>    | persistent | {"id": 3}                                                   | the same transaction | –                  |
| /schemas/counter                        | persistent | {"last": 3}                                                 | the same transaction | –                  |
| /schemas/subjects/<subject>             | persistent | {"versions": [1, 3]} (ids, oldest first)                    | the same transaction | –                  |

Subjects and producers' names are percent-encoded to fit into a path. A member's name carries the number that ZooKeeper
gave it when it joined, so that age needs no further read.
"""

from urllib.parse import quote

LAYOUT = "/layout"
ROOTS = frozenset(
    {"brokers", "controller", "partitions", "topics", "groups", "producers", "schemas"}
)
"""What else lies right below the chroot."""
BROKERS = "/brokers/ids"
DRAINED_BROKERS = "/brokers/drained"
CONTROLLER = "/controller/current"
CONTROLLER_EPOCH = "/controller/epoch"
PARTITIONS = "/partitions"
TOPICS = "/topics"
GROUPS = "/groups"
PRODUCERS = "/producers"
PRODUCER_IDS = "/producers/ids"
PRODUCER_NAMES = "/producers/names"
SCHEMA_IDS = "/schemas/ids"
SCHEMA_TEXTS = "/schemas/texts"
SCHEMA_COUNTER = "/schemas/counter"
SUBJECTS = "/schemas/subjects"


def broker(broker_id: int) -> str:
    return f"{BROKERS}/{broker_id}"


def broker_epoch(broker_id: int) -> str:
    return f"/brokers/epochs/{broker_id}"


def drained_broker(broker_id: int) -> str:
    return f"{DRAINED_BROKERS}/{broker_id}"


def partition_states(topic_id: str) -> str:
    return f"{PARTITIONS}/{topic_id}"


def partition_state(topic_id: str, partition: int) -> str:
    return f"{PARTITIONS}/{topic_id}/{partition}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def group(name: str) -> str:
    return f"{GROUPS}/{name}"


def members(group_name: str) -> str:
    return f"{GROUPS}/{group_name}/ids"


def member(group_name: str, member_name: str) -> str:
    return f"{GROUPS}/{group_name}/ids/{member_name}"


def plan(group_name: str) -> str:
    return f"{GROUPS}/{group_name}/plan"


def owners(group_name: str, topic_name: str) -> str:
    return f"{GROUPS}/{group_name}/owners/{topic_name}"


def owner(group_name: str, topic_name: str, partition: int) -> str:
    return f"{GROUPS}/{group_name}/owners/{topic_name}/{partition}"


def all_offsets(group_name: str) -> str:
    return f"{GROUPS}/{group_name}/offsets"


def all_owners(group_name: str) -> str:
    return f"{GROUPS}/{group_name}/owners"


def offsets(group_name: str, topic_name: str) -> str:
    return f"{GROUPS}/{group_name}/offsets/{topic_name}"


def offset(group_name: str, topic_name: str, partition: int) -> str:
    return f"{GROUPS}/{group_name}/offsets/{topic_name}/{partition}"


def events(group_name: str) -> str:
    return f"{GROUPS}/{group_name}/events"


def left(group_name: str, member_name: str) -> str:
    return f"{GROUPS}/{group_name}/events/left-{member_name}"


def departure(group_name: str, member_name: str) -> str:
    return f"{GROUPS}/{group_name}/events/gone-{member_name}"


def producer_name(name: str) -> str:
    return f"{PRODUCER_NAMES}/{_node_name(name)}"


def schema_id(number: int) -> str:
    return f"{SCHEMA_IDS}/{number:010d}"


def schema_text(digest: str) -> str:
    return f"{SCHEMA_TEXTS}/{digest}"


def subject(name: str) -> str:
    return f"{SUBJECTS}/{_node_name(name)}"


def _node_name(text: str) -> str:
    return quote(text, safe="").replace(".", "%2E")
