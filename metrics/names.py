"""Every metric, declared once: its name, kind, labels and help. The docs' table and the dashboard are held
to it by tests.

Metrics that kafka_exporter has as well keep its names, `kafka_…`, so its dashboards and alarms work.
"""

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class MetricDeclaration(NamedTuple):
    """A metric. `key` is the name of its value in a snapshot, "" if it has several values."""

    key: str
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def _gauge(key: str, name: str, help: str) -> MetricDeclaration:
    return MetricDeclaration(key, f"folkmoot_{name}", "gauge", help)


def _counter(key: str, name: str, help: str) -> MetricDeclaration:
    return MetricDeclaration(key, f"folkmoot_{name}_total", "counter", help)


CONTROLLER: Final = (
    _gauge("controller", "controller_active", "1 where the cluster's controller is, else 0."),
    _gauge("zookeeper", "zookeeper_connected", "1 while ZooKeeper answers, else 0."),
)

BROKER: Final = (
    *CONTROLLER,
    _counter("zookeeper_sessions", "zookeeper_sessions", "ZooKeeper sessions opened."),
    MetricDeclaration(
        "brokers", "kafka_brokers", "gauge", "Registered brokers, as this broker sees it."
    ),
    _gauge("topics", "topics", "Topics of the cluster, as this broker sees it."),
    _gauge(
        "cluster_partitions", "partitions", "Partitions of the cluster, as this broker sees it."
    ),
    _gauge(
        "leaderless",
        "leaderless_partitions",
        "Partitions of the cluster without a leader, as this broker sees it.",
    ),
    _gauge("partitions", "broker_partitions", "Replicas on this broker."),
    _gauge("leaders", "broker_leader_partitions", "Partitions that this broker leads."),
    _gauge(
        "under_replicated",
        "broker_under_replicated_partitions",
        "Partitions led here with a replica that is not in sync.",
    ),
    _gauge(
        "below_minimum",
        "broker_under_min_isr_partitions",
        "Partitions led here with fewer replicas in sync than min_in_sync: acks=all is refused.",
    ),
    _gauge(
        "offline_replicas",
        "broker_offline_replicas",
        "Replicas here that are out of use because of their files.",
    ),
    _counter(
        "isr_shrinks", "broker_isr_shrinks", "Replicas that left the ISR of partitions led here."
    ),
    _counter(
        "isr_expands", "broker_isr_expands", "Replicas that joined the ISR of partitions led here."
    ),
    _counter("elected", "broker_leader_elections", "Partitions that this broker began to lead."),
    _counter(
        "elected_unclean",
        "broker_unclean_leader_elections",
        "Those by an unclean election, which loses records.",
    ),
    _counter("records_in", "broker_records_in", "Records appended for producers."),
    _counter("bytes_in", "broker_bytes_in", "Bytes appended for producers, compressed."),
    _gauge("log_bytes", "broker_log_size_bytes", "Bytes of all logs, without indexes."),
    _gauge("open_segments", "broker_open_segments", "Segments with open files."),
    _gauge("damaged", "broker_damaged_partitions", "Replicas here with known damage."),
    _counter(
        *("repaired", "broker_repairs"),
        "Damaged replicas that were cut, to copy the rest from their leader.",
    ),
    _gauge("scrubbed", "broker_scrub_progress_ratio", "The read part of this round: 0 to 1."),
    _counter("busy", "broker_event_loop_busy_seconds", "Seconds that the event loop has worked."),
    _counter("slow_steps", "broker_event_loop_slow_steps", "Steps of the event loop above 20 ms."),
    _gauge(
        "longest_step",
        "broker_event_loop_longest_step_seconds",
        "Longest step of the event loop so far.",
    ),
)

_API: Final = ("api",)
REQUESTS: Final = MetricDeclaration(
    "", "folkmoot_broker_requests_total", "counter", "Requests received, by api.", _API
)
REQUEST_BYTES: Final = MetricDeclaration(
    "", "folkmoot_broker_request_bytes_total", "counter", "Bytes of requests, by api.", _API
)
RESPONSE_BYTES: Final = MetricDeclaration(
    "",
    "folkmoot_broker_response_bytes_total",
    "counter",
    "Bytes of batches in responses, by api: fetch for consumers, replica_fetch for followers.",
    _API,
)
REQUEST_SECONDS: Final = MetricDeclaration(
    "",
    "folkmoot_broker_request_seconds",
    "histogram",
    "From a request's arrival to its answer, including its waiting time, by api.",
    _API,
)
ERRORS: Final = MetricDeclaration(
    "",
    "folkmoot_broker_errors_total",
    "counter",
    "Errors answered, for a request or one of its entries, by kind.",
    ("error",),
)
PURGATORY: Final = MetricDeclaration(
    "",
    "folkmoot_broker_purgatory_requests",
    "gauge",
    "Requests that wait, by operation: fetches for records, produces to be committed.",
    ("operation",),
)
FLUSH_SECONDS: Final = MetricDeclaration(
    "",
    "folkmoot_broker_flush_seconds",
    "histogram",
    "Flushes of logs to disk, each of some logs.",
)
LEFT_OUT: Final = _gauge(
    "", "broker_partitions_left_out", "Replicas here without metrics of their own: too many."
)

_PARTITION: Final = ("topic", "partition")


def _leader_metric(key: str, name: str, help: str) -> MetricDeclaration:
    return MetricDeclaration(key, f"kafka_topic_partition_{name}", "gauge", help, _PARTITION)


LED: Final = (
    _leader_metric("high_watermark", "current_offset", "High watermark, from the leader."),
    _leader_metric("log_start", "oldest_offset", "First offset that can be read, from the leader."),
    _leader_metric("replicas", "replicas", "Number of replicas, from the leader."),
    _leader_metric("in_sync", "in_sync_replica", "Number of in-sync replicas, from the leader."),
    _leader_metric(
        "is_under_replicated",
        "under_replicated_partition",
        "1 if a replica is not in sync, from the leader.",
    ),
)
REPLICA: Final = (
    MetricDeclaration(
        "size", "folkmoot_log_size_bytes", "gauge", "A replica's log, in bytes.", _PARTITION
    ),
    MetricDeclaration(
        "segments", "folkmoot_log_segments", "gauge", "A replica's segments.", _PARTITION
    ),
)

_CLIENT: Final = ("client_id",)


def _producer_metric(key: str, name: str, help: str, kind: Kind = "counter") -> MetricDeclaration:
    suffix = "_total" if kind == "counter" else ""
    return MetricDeclaration(key, f"folkmoot_producer_{name}{suffix}", kind, help, _CLIENT)


PRODUCER: Final = (
    _producer_metric("records_delivered", "records_delivered", "Records acknowledged."),
    _producer_metric("records_failed", "records_failed", "Records failed."),
    _producer_metric("batches_delivered", "batches_delivered", "Batches acknowledged."),
    _producer_metric("batches_failed", "batches_failed", "Batches failed."),
    _producer_metric("batches_sent", "batches_sent", "Batches sent; each attempt counts."),
    _producer_metric("batches_retried", "batches_retried", "Batches sent again."),
    _producer_metric("requests_sent", "requests_sent", "Requests to produce."),
    _producer_metric("bytes_sent", "sent_bytes", "Bytes of batches sent; each attempt counts."),
    _producer_metric("bytes_packed", "packed_bytes", "Bytes of batches made, before compression."),
    _producer_metric("bytes_compressed", "compressed_bytes", "Bytes of batches after compression."),
    _producer_metric("epochs_begun", "epochs_begun", "Epochs begun because sequences did not fit."),
    _producer_metric(
        "queue_seconds", "queue_seconds", "Waiting time of all batches before their first request."
    ),
    _producer_metric("buffered_records", "buffered_records", "Records not delivered yet.", "gauge"),
    _producer_metric("buffered_bytes", "buffered_bytes", "Bytes of these records.", "gauge"),
)

_MEMBER: Final = ("client_id", "group")


def _consumer_metric(key: str, name: str, help: str, kind: Kind = "counter") -> MetricDeclaration:
    suffix = "_total" if kind == "counter" else ""
    return MetricDeclaration(key, f"folkmoot_consumer_{name}{suffix}", kind, help, _MEMBER)


CONSUMER: Final = (
    _consumer_metric("records_fetched", "records_fetched", "Records fetched."),
    _consumer_metric("records_taken", "records_taken", "Records handed out from the buffer."),
    _consumer_metric("batches_fetched", "batches_fetched", "Batches fetched."),
    _consumer_metric("bytes_fetched", "fetched_bytes", "Bytes fetched, compressed."),
    _consumer_metric("fetches_sent", "fetches_sent", "Requests to fetch."),
    _consumer_metric("fetches_refused", "fetches_refused", "Partitions with an error in a fetch."),
    _consumer_metric("offset_resets", "offset_resets", "Offsets out of range that were reset."),
    _consumer_metric(
        "records_skipped", "records_skipped", "Records skipped: they could not be deserialized."
    ),
    _consumer_metric("rebalances", "rebalances", "Plans of the group seen."),
    _consumer_metric("commits", "commits", "Commits answered."),
    _consumer_metric("commit_seconds", "commit_seconds", "Time of all commits."),
    _consumer_metric(
        "fenced_commits", "fenced_commits", "Commits refused: another member had the partition."
    ),
    _consumer_metric("lost_partitions", "lost_partitions", "Partitions lost without a release."),
    _consumer_metric("partitions", "assigned_partitions", "Partitions that are read.", "gauge"),
    _consumer_metric(
        "buffered_bytes", "buffered_bytes", "Bytes fetched and not yet handed out.", "gauge"
    ),
)
WELL: Final = _consumer_metric("", "well", "1 if it reads, or is about to, else 0.", "gauge")
ALARMS: Final = _consumer_metric(
    "", "alarms", "Alarms of the consumer: see health().alarms.", "gauge"
)
POLL_AGE: Final = _consumer_metric(
    "",
    "last_poll_age_seconds",
    "Time since the application asked for records; members of a group only.",
    "gauge",
)
STATE: Final = MetricDeclaration(
    "", "folkmoot_consumer_state", "gauge", "1 for the current state.", (*_MEMBER, "state")
)
LAG: Final = MetricDeclaration(
    "",
    "folkmoot_consumer_lag_records",
    "gauge",
    "Records between the position and the log's end, as of the last fetch.",
    (*_MEMBER, *_PARTITION),
)

_GROUP: Final = ("consumergroup", *_PARTITION)
GROUP: Final = (
    MetricDeclaration(
        "committed",
        "kafka_consumergroup_current_offset",
        "gauge",
        "The committed offset of a group: the next one to process.",
        _GROUP,
    ),
    MetricDeclaration(
        "lag",
        "kafka_consumergroup_lag",
        "gauge",
        "Records from there to the log's end. No series if nothing is committed, the end is unknown, or the "
        "end is below the committed offset.",
        _GROUP,
    ),
    MetricDeclaration(
        "behind",
        "folkmoot_consumergroup_lag_seconds",
        "gauge",
        "The age of the first uncommitted record, 0 without one.",
        _GROUP,
    ),
)
GROUP_MEMBERS: Final = MetricDeclaration(
    "", "kafka_consumergroup_members", "gauge", "Live members of a group.", ("consumergroup",)
)
GROUP_PARTITIONS: Final = MetricDeclaration(
    "",
    "folkmoot_consumergroup_partitions",
    "gauge",
    "A group's partitions by state: stable, draining, claiming, reserved, unowned, and those with a "
    "problem: malformed, truncated, unsubscribed, deleted.",
    ("consumergroup", "state"),
)
GROUP_LEFT_OUT: Final = _gauge(
    "", "consumergroup_partitions_left_out", "Groups' partitions without metrics: too many."
)

REGISTRY_REQUESTS: Final = MetricDeclaration(
    "",
    "folkmoot_registry_requests_total",
    "counter",
    "Requests that the schema registry's server has answered, by method and status.",
    ("method", "status"),
)
REGISTRY_SECONDS: Final = MetricDeclaration(
    "",
    "folkmoot_registry_request_seconds",
    "histogram",
    "From a request's head to its answer, in the schema registry's server.",
)

ALL: Final = (
    *BROKER,
    *(REQUESTS, REQUEST_BYTES, RESPONSE_BYTES, REQUEST_SECONDS),
    *(ERRORS, PURGATORY, FLUSH_SECONDS, LEFT_OUT),
    *LED,
    *REPLICA,
    *PRODUCER,
    *CONSUMER,
    *(WELL, ALARMS, POLL_AGE, STATE, LAG),
    *(*GROUP, GROUP_MEMBERS, GROUP_PARTITIONS, GROUP_LEFT_OUT),
    *(REGISTRY_REQUESTS, REGISTRY_SECONDS),
)
