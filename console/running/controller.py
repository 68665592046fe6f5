"""`folkmoot controller`: a candidate for the controller, in a process of its own."""

import sys
import threading
from typing import TYPE_CHECKING

import click

from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.console.options.cluster import Cluster, with_zookeeper
from folkmoot.console.options.declared import config_options
from folkmoot.console.options.monitoring import (
    log_to_stderr,
    logging_options,
    metrics_options,
    serve_pages,
)
from folkmoot.console.signals import sigterm_like_ctrl_c

if TYPE_CHECKING:
    from folkmoot.metrics.pages import MetricsSource


@click.command()
@config_options(BrokerConfig, "session_timeout")
@click.option(
    "--no-guardian",
    is_flag=True,
    help="Do not start the process that ends the session at once when this one dies.",
)
@metrics_options()
@logging_options
@with_zookeeper()
def command(
    cluster: Cluster,
    session_timeout: float,
    no_guardian: bool,
    metrics_port: int | None,
    metrics_host: str,
    log_format: str,
    log_level: str,
) -> int:
    """Stand for election as the controller, as every broker does, and do nothing else.

    Runs until SIGTERM or Ctrl-C.
    """
    from folkmoot.brokers.controller.thread import ControllerThread
    from folkmoot.coordination.cluster.controllers import ALONE
    from folkmoot.coordination.connector import connector
    from folkmoot.coordination.zookeeper import connect_string

    connect_string.parse(cluster.address)
    log_to_stderr(log_format, log_level)
    # A wrong address is an error now; a ZooKeeper that is lost later is waited for.
    cluster.connect(create=True)(session_timeout).close()
    connects = connector(cluster.address, guarded=not no_guardian)
    controller = ControllerThread(connects, ALONE, session_timeout)

    def metrics() -> "MetricsSource":
        from folkmoot.metrics.broker import ControllerMetrics

        return ControllerMetrics(controller)

    with sigterm_like_ctrl_c(), serve_pages(metrics_host, metrics_port, metrics, sys.stdout):
        try:
            controller.start()
            print("controller ready", flush=True)
            threading.Event().wait()
        except KeyboardInterrupt:
            pass
        finally:
            controller.close()
    return 0
