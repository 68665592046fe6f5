"""`folkmoot exporter`: the lag of all groups for Prometheus, in a process of its own."""

import sys
import threading

import click

from folkmoot.console.options.cluster import Cluster, with_zookeeper
from folkmoot.console.options.monitoring import (
    log_to_stderr,
    logging_options,
    metrics_options,
    serve_pages,
)
from folkmoot.console.options.names import GROUP
from folkmoot.console.signals import sigterm_like_ctrl_c

DEFAULT_PORT = 9308
"""As kafka_exporter's."""
TIMEOUT = 5.0
"""Less than Prometheus waits for an answer."""


@click.command()
@click.option(
    *("--group", "groups"),
    type=GROUP,
    multiple=True,
    help="Only this group; may be repeated (default: all).",
)
@metrics_options(DEFAULT_PORT)
@logging_options
@with_zookeeper(TIMEOUT)
def command(
    cluster: Cluster,
    groups: tuple[str, ...],
    metrics_port: int | None,
    metrics_host: str,
    log_format: str,
    log_level: str,
) -> int:
    """Serve the lag of every group to Prometheus, also when all members of a group are gone.

    Each look reads all groups. Runs until SIGTERM or Ctrl-C.
    """
    from folkmoot.metrics.groups import GroupMetrics  # its extra may be missing: first of all

    log_to_stderr(log_format, log_level)
    with sigterm_like_ctrl_c():
        try:
            with (
                cluster.admin() as admin,
                serve_pages(
                    metrics_host, metrics_port, lambda: GroupMetrics(admin, groups), sys.stdout
                ),
            ):
                threading.Event().wait()
        except KeyboardInterrupt:
            pass
    return 0
