"""`folkmoot exporter`: the lag of all groups for Prometheus, in a process of its own."""

import argparse
import sys
import threading

from folkmoot.console.monitoring.options import add_logging, add_metrics, log_to_stderr, served
from folkmoot.console.options import add_zookeeper, admin_of, sigterm_like_ctrl_c

DEFAULT_PORT = 9308
"""As kafka_exporter's."""
TIMEOUT = 5.0
"""Less than Prometheus waits for a look."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Members tell of their own lag; this tells of every group's, also when all of its members are gone. "
        "Each look reads all groups. It goes on until SIGTERM or Ctrl-C."
    )
    add_zookeeper(parser, timeout=TIMEOUT)
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME",
        help="only this group; may be repeated (default: all)",
    )
    add_metrics(parser, DEFAULT_PORT)
    add_logging(parser)


def run(args: argparse.Namespace) -> int:
    from folkmoot.metrics.groups import GroupMetrics

    log_to_stderr(args.log_format, args.log_level)
    with sigterm_like_ctrl_c():
        try:
            with admin_of(args) as admin:
                watched = GroupMetrics(admin, args.group)
                with served(args.metrics_host, args.metrics_port, watched, sys.stdout):
                    threading.Event().wait()
        except KeyboardInterrupt:
            pass
    return 0
