"""`folkmoot controller`: a candidate for the controller, in a process of its own."""

import argparse
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.console.monitoring.options import add_logging, add_metrics, log_to_stderr, served
from folkmoot.console.options import add_declared, add_zookeeper, sigterm_like_ctrl_c

if TYPE_CHECKING:
    from folkmoot.brokers.controller.thread import ControllerThread


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Every broker stands for election as the controller; this stands, too, and does nothing else. "
        "It goes on until SIGTERM or Ctrl-C."
    )
    add_zookeeper(parser)
    add_declared(parser, BrokerConfig, "session_timeout")
    parser.add_argument(
        "--no-guardian",
        action="store_true",
        help="do not start the process that ends the session at once when this one dies",
    )
    add_metrics(parser)
    add_logging(parser)


def run(args: argparse.Namespace) -> int:
    from folkmoot.brokers.controller.thread import ControllerThread
    from folkmoot.coordination.cluster.controllers import ALONE
    from folkmoot.coordination.connector import connect, connector
    from folkmoot.coordination.zookeeper import connect_string

    connect_string.parse(args.zookeeper)
    log_to_stderr(args.log_format, args.log_level)
    # Who gave a wrong address is told so; a ZooKeeper that goes later is waited for.
    connect(args.zookeeper, args.session_timeout, connect_timeout=args.timeout, create=True).close()
    connects = connector(args.zookeeper, guarded=not args.no_guardian)
    controller = ControllerThread(connects, ALONE, args.session_timeout)
    with sigterm_like_ctrl_c(), _pages(args, controller):
        try:
            controller.start()
            print("controller ready", flush=True)
            threading.Event().wait()
        except KeyboardInterrupt:
            pass
        finally:
            controller.close()
    return 0


def _pages(
    args: argparse.Namespace, controller: "ControllerThread"
) -> AbstractContextManager[None]:
    if args.metrics_port is None:
        return nullcontext()
    from folkmoot.metrics.broker import ControllerMetrics

    return served(args.metrics_host, args.metrics_port, ControllerMetrics(controller), sys.stdout)
