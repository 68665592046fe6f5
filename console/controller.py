"""`folkmoot controller`: a candidate for the controller, in a process of its own."""

import argparse
import logging
import threading

from folkmoot.console.broker import DEFAULT_SESSION_TIMEOUT
from folkmoot.console.options import add_zookeeper, sigterm_like_ctrl_c, typed
from folkmoot.protocol.quantities import seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Every broker stands for election as the controller; this stands, too, and does nothing else. "
        "It goes on until SIGTERM or Ctrl-C."
    )
    add_zookeeper(parser, timeout=False)
    parser.add_argument(
        "--session-timeout",
        type=typed(seconds),
        metavar="TIME",
        default=DEFAULT_SESSION_TIMEOUT,
        help="of silence, after which ZooKeeper takes it for dead (default: "
        f"{DEFAULT_SESSION_TIMEOUT:g}s)",
    )
    parser.add_argument(
        "--no-guardian",
        action="store_true",
        help="do not start the process that ends the session at once when this one dies",
    )


def run(args: argparse.Namespace) -> int:
    from folkmoot.brokers.controller.thread import ControllerThread
    from folkmoot.coordination.connector import connector
    from folkmoot.coordination.controllers import ALONE
    from folkmoot.coordination.zookeeper import connect_string

    connect_string.parse(args.zookeeper)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    connect = connector(args.zookeeper, guarded=not args.no_guardian, create=True)
    controller = ControllerThread(connect, ALONE, args.session_timeout)
    with sigterm_like_ctrl_c():
        try:
            controller.start()
            print("controller ready", flush=True)
            threading.Event().wait()
        except KeyboardInterrupt:
            pass
        finally:
            controller.close()
    return 0
