"""`folkmoot exporter`: what Prometheus is told of groups of whom nobody lives."""

import re

from folkmoot.metrics import names
from tests.console.cluster import Shell
from tests.metrics.scrape import Scraped, health

DECLARED = (*names.GROUP, names.GROUP_MEMBERS, names.GROUP_PARTITIONS, names.GROUP_LEFT_OUT)


def test_the_lag_of_a_group_without_members_is_told(shell: Shell) -> None:
    shell.done("produce", shell.topic, "--partition", "0", stdin="a\nb\nc\n")
    shell.done("produce", shell.topic, "--partition", "1", stdin="d\n")
    shell.done("consume", shell.topic, "--group", shell.group)
    shell.done("produce", shell.topic, "--partition", "0", stdin="e\nf\n")
    child = shell.start("exporter", "--metrics-port", "0", "--group", shell.group)
    assert child.stdout is not None
    found = re.fullmatch(r"metrics at http://(\S+)/metrics\n", child.stdout.readline())
    assert found is not None
    assert health(found[1], "readyz") == health(found[1], "healthz") == (200, {"ok": True})
    shown = Scraped(found[1])
    shown.assert_declared(DECLARED)
    of_group = {"consumergroup": shell.group}
    assert shown("kafka_consumergroup_members", **of_group) == 0
    assert shown("folkmoot_consumergroup_partitions", state="unowned", **of_group) == 2
    for partition, committed, lag in (("0", 3, 2), ("1", 1, 0)):
        of_partition = of_group | {"topic": shell.topic, "partition": partition}
        assert shown("kafka_consumergroup_current_offset", **of_partition) == committed
        assert shown("kafka_consumergroup_lag", **of_partition) == lag
        behind = shown("folkmoot_consumergroup_lag_seconds", **of_partition)
        assert behind is not None
        assert (behind > 0) == (lag > 0)
