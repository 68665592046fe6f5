"""Every znode path of a cluster, below the chroot of its connect string.

| path                                    | kind       | example contents (JSON)                                     | written by      | watched by              |
|-----------------------------------------|------------|-------------------------------------------------------------|-----------------|-------------------------|
| /layout                                 | persistent | {"version": 1, "cluster": "4c…"}; layout.py                 | the first session on the chroot; the first broker, the cluster's id | – |
| /brokers/ids/<id>                       | ephemeral  | {"listeners": {"client": "10.0.0.1:9190"}, "nonce": "9f…", "directory": "d3…", "epoch": 3} | the broker | brokers, the controller |
| /brokers/epochs/<id>                    | persistent | the data directory that had the id last; its version grows with each registration of the broker, in the same transaction: the broker's epoch | the broker | – |
| /brokers/drained/<id>                   | persistent | nothing: no replicas are placed on that broker              | drain commands  | –                       |
| /brokers/schema-id                      | persistent | {"last": 3}: the highest schema id that brokers have seen in batches; new ids are above, also if the registry was lost | brokers, compare-and-set | – |
| /controller/current                     | ephemeral  | {"broker": 1, "nonce": "9f…", "epoch": 7}; cluster/controllers.py | who is elected  | those that stand for election |
| /controller/epoch                       | persistent | nothing; its version grows with each election, in the same transaction: the controller's epoch | who is elected | – |
| /controller/events/e-<number>           | persistent, sequential | cluster/events.py: changes that the controller saw | the controller | – |
| /partitions/<topic id>/<p>              | persistent | {"leader": 1, "leader_epoch": 4, "isr": [1, 2], "controller_epoch": 7, "active": true}; partition_states.py | the controller; the leader, compare-and-set | brokers |
| /topics/<topic>                         | persistent | {"id": "6b…", "partitions": [[1], [2], [3]], "config": {}, "reassignments": {}, "reassigned": 0}; topics.py | topic commands; the controller, which ends reassignments | brokers, members, the controller |
| /deletions/<topic id>                   | persistent | {"topic": "orders", "at": 1767225600.0, "by": "ann@host", "pending": [1, 2, -1]}; deletions.py | topic deletions, in one transaction with the topic's node; who has carried it out, compare-and-set | brokers, the controller |
| /groups                                 | persistent | nothing; its version grows when offsets are deleted         | group deletions | –                       |
| /groups/<group>/ids/<member>            | ephemeral, sequential | {"topics": ["flights"], "host": "h", "revoke_timeout": 2.0, "assignors": ["sticky"]} | the member | members (children) |
| /groups/<group>/plan                    | persistent | plan.py: {"protocol": 1, "generation": 7, "members": […], "topics": {…}, …} | any member, compare-and-set | members  |
| /groups/<group>/owners/<topic>/<p>      | ephemeral  | {"member": "m-0000000003", "nonce": "a1…", "epoch": 4, "release_timeout": 302.0} | the owner | the owner; the next one |
| /groups/<group>/offsets/<topic>/<p>     | persistent | {"offset": 512, "epoch": 4, "member": "m-…", "nonce": "a1…", "topic_id": "6b…", "reset": "c0…"} | the owner, fenced by version; resets | – |
| /groups/<group>/events/log-<bytes>-<number> | persistent, sequential | history.py: a rebalance or a reset                  | planners, administrators | –                |
| /groups/<group>/events/left-<member>    | persistent | nothing: it left in order; until the next plan is noted, or a static member is back | members that leave | –                    |
| /groups/<group>/events/gone-<member>    | persistent | how a member went otherwise; as long                        | members                 | –                       |
| /producers/ids                          | persistent | {"next": 4000}                                              | producers, compare-and-set | –                |
| /producers/names/<name>                 | persistent | {"producer_id": 7, "epoch": 2, "sink_epoch": 41, "attempt": "9f…", "topics": {"<id>": [1, [[500, 7019]]]}, "since": 1}; producer_takeovers.py, and producers/claims.py for transactional ids: "topics": {"orders/<id>": [0, []]} | who takes the name over, compare-and-set | – |
| /schemas/settings                       | persistent | {"compatibility": "FULL", "mode": "READONLY"}, each if it was set: globally | any client, in one transaction | – |
| /schemas/contexts/<context>             | persistent | the same of a context                                       | any client      | –                       |
| …/<context>/counter                     | persistent | {"last": 3}: the last id given, or the highest one imported | any client, in one transaction with what got the id | – |
| …/<context>/ids/<id, ten digits>        | persistent | nodes.py: {"schema": "{…}", "guid": "9f…", "references": […], …}; never written again | the same transaction | – |
| …/<context>/ids/<id>/<subject>          | persistent | nothing: the subject has a version, live or deleted, with that id | the same transaction | – |
| …/<context>/guids/<guid>                | persistent | {"id": 3}; never written again                              | the same transaction | –                  |
| …/<context>/subjects/<subject>          | persistent | {"versions": [[1, 1, true, false], [2, 3, false, false]], "compatibility": "FULL"} (version, id, deleted, refers to others); never deleted, so that its version tells of every change | any client, in one transaction | – |
| …/<context>/subjects/<subject>/<reference> | persistent | nothing: that version is referred to, by that live one (`schema_reference`) | any client, in one transaction | – |
| …/<context>/live/<subject>              | persistent | nothing: the subject has live versions                      | the same transaction | –                  |
| …/<context>/deleted/<subject>           | persistent | nothing: the subject has versions, and all are softly deleted | the same transaction | –                |

Subjects, contexts and producers' names are percent-encoded to fit into a path.
"""

from urllib.parse import quote

LAYOUT = "/layout"
ROOTS = frozenset(
    {
        *("brokers", "controller", "deletions", "groups", "partitions", "producers", "schemas"),
        "topics",
    }
)
"""The other nodes right below the chroot."""
BROKERS = "/brokers/ids"
DRAINED_BROKERS = "/brokers/drained"
CONTROLLER = "/controller/current"
CONTROLLER_EPOCH = "/controller/epoch"
CLUSTER_EVENTS = "/controller/events"
PARTITIONS = "/partitions"
TOPICS = "/topics"
DELETIONS = "/deletions"
GROUPS = "/groups"
SEEN_SCHEMA_ID = "/brokers/schema-id"
PRODUCER_IDS = "/producers/ids"
PRODUCER_NAMES = "/producers/names"
SCHEMA_SETTINGS = "/schemas/settings"
SCHEMA_CONTEXTS = "/schemas/contexts"
LIVE_SUBJECTS = "live"
DELETED_SUBJECTS = "deleted"
"""Below each context."""


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


def deletion(topic_id: str) -> str:
    return f"{DELETIONS}/{topic_id}"


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


def departure(group_name: str, member_name: str, how: str = "gone") -> str:
    return f"{GROUPS}/{group_name}/events/{how}-{member_name}"


def producer_name(name: str) -> str:
    return f"{PRODUCER_NAMES}/{quoted(name)}"


def schema_context(context: str) -> str:
    return f"{SCHEMA_CONTEXTS}/{quoted(context)}"


def schema_counter(context: str) -> str:
    return f"{schema_context(context)}/counter"


def schema_id(context: str, number: int) -> str:
    return f"{schema_context(context)}/ids/{number:010d}"


def schema_use(context: str, number: int, subject_name: str) -> str:
    return f"{schema_id(context, number)}/{quoted(subject_name)}"


def schema_guid(context: str, guid: str) -> str:
    return f"{schema_context(context)}/guids/{guid}"


def subject(context: str, name: str) -> str:
    return f"{schema_context(context)}/subjects/{quoted(name)}"


def schema_reference(
    context: str, name: str, version: int, referrer: str, referrer_version: int, referrer_id: int
) -> str:
    """Below the subject `name`; the referrer with its context."""
    child = f"{version}-{referrer_id}-{referrer_version}-{quoted(referrer)}"
    return f"{subject(context, name)}/{child}"


def listed_subject(context: str, listing: str, name: str) -> str:
    """`listing` is LIVE_SUBJECTS or DELETED_SUBJECTS."""
    return f"{schema_context(context)}/{listing}/{quoted(name)}"


def quoted(name: str) -> str:
    """A percent-encoded node name; keeps prefixes."""
    return quote(name, safe="").replace(".", "%2E")
