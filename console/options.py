"""Options that several commands share."""

import argparse
import ast
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from folkmoot.protocol.errors import ConfigError, FolkmootError
from folkmoot.protocol.options import Declaration, declarations, parse
from folkmoot.protocol.quantities import duration, moment, seconds

if TYPE_CHECKING:
    from folkmoot.admin.admin import Admin
    from folkmoot.coordination.zookeeper.session import Connect, Session

_T = TypeVar("_T")

ENVIRONMENT: Final = "FOLKMOOT_ZOOKEEPER"
BOOTSTRAP: Final = "FOLKMOOT_BOOTSTRAP"
DEGRADED: Final = 5
"""The exit code of a status that is not all well."""
SESSION_TIMEOUT: Final = 10.0
TIMEOUT: Final = 15.0
"""So long ZooKeeper and brokers may take to answer, unless `--timeout` says otherwise."""
LONGEST_WAIT: Final = 86_400.0


class NotConfirmed(FolkmootError):
    """Something that cannot be undone was asked for, and not confirmed."""


class RegistryUnreachable(FolkmootError):
    """A schema registry behind HTTP does not answer."""


class NotReadToTheEnd(FolkmootError):
    """The ends of some partitions were not reached, and nothing more comes."""


def confirm(warning: str, what: str, name: str, done: str) -> None:
    """Have the name typed of what is to be lost. Raises NotConfirmed."""
    print(f"{warning}Type its name to go on: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # the input has ended, behind the question
        print(file=sys.stderr)
    if answer.strip() != name:
        raise NotConfirmed(f"{what} {name} was not {done}: type its name, or use --yes")


def add_timeout(parser: argparse.ArgumentParser, default: float = TIMEOUT) -> None:
    """`--timeout`, the same for every command that waits for answers."""
    parser.add_argument(
        "--timeout",
        type=typed(waiting_time),
        metavar="TIME",
        default=default,
        help=f"what ZooKeeper and brokers may take to answer (default: {default:g}s)",
    )


class Documented(NamedTuple):
    """An option of a config as its source declares it."""

    annotation: str
    default: str
    """As Python writes it; empty for an option that is required."""
    meaning: str


def documented(config: Any) -> dict[str, Documented]:
    """Read the options of a config from its source, where their meanings are; inherited ones first."""
    found: dict[str, Documented] = {}
    bases: list[Any] = [each for each in reversed(config.__mro__) if is_dataclass(each)]
    for base in bases:
        (tree,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(tree, ast.ClassDef)
        for node, below in pairwise([*tree.body, ast.Pass()]):
            if isinstance(node, ast.AnnAssign):
                name = ast.unparse(node.target)
                meaning = found[name].meaning if name in found else ""
                match below:
                    case ast.Expr(ast.Constant(str(text))):
                        meaning = inspect.cleandoc(text)
                annotation = ast.unparse(node.annotation).replace("'", '"')
                found[name] = Documented(annotation, _default(base, name, node.value), meaning)
    return found


def _default(config: Any, name: str, value: ast.expr | None) -> str:
    """`64 * 1024 * 1024`, but the value of a constant that has a name."""
    if value is None:
        return ""
    (default,) = (each.default for each in fields(config) if each.name == name)
    if default is MISSING:
        return "all defaults"
    if not any(isinstance(each, ast.Name) for each in ast.walk(value)):
        return ast.unparse(value).replace("'", '"')
    shown = f"{default:.15g}" if isinstance(default, float) else repr(default)
    return shown.replace("'", '"')


def add_declared(
    parser: argparse.ArgumentParser, config: Any, *names: str, **defaults: Any
) -> None:
    """Flags for these options of a config, as it declares them: `--session-timeout` of `session_timeout`.

    Other `defaults` than there may be given.
    """
    known, options = declarations(config), documented(config)
    for field in fields(config):
        if (name := field.name) in names:
            declared, option = known[name], options[name]
            default = defaults.get(name, None if field.default is MISSING else field.default)
            shown = str(defaults.get(name, option.default)).strip('"(),')
            facts = [str(declared).removeprefix("a ")] if declared.is_number else []
            facts += [f"default {shown}"] if shown else [] if option.default else ["required"]
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                type=typed(partial(_parsed, config, name)),
                metavar=_placeholder(declared),
                default=default,
                help=option.meaning + (f" ({'; '.join(facts)})" if facts else ""),
            )


def _placeholder(declared: Declaration) -> str:
    for unit in declared.units:
        return "TIME" if unit.name == "seconds" else "SIZE"
    return "N" if declared.is_number else "DIR" if Path in declared.kinds else "TEXT"


def _parsed(config: Any, name: str, text: str) -> Any:
    return parse(config, {name: text})[name]


def add_set(parser: argparse.ArgumentParser, what: str) -> None:
    """`--set NAME=VALUE`, for what `set_of` takes."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"an option of the {what} (docs/configuration.md), such as request_timeout=1m; may be repeated",
    )


def set_of(args: argparse.Namespace, config: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """A client's options: those that the command sets of its `own`, and those given. Raises ConfigError."""
    given = {}
    for word in args.set:
        name, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--set {word} is not understood: write NAME=VALUE")
        if name in own:
            raise ConfigError(f"--set {word}: the command itself says what {name} is")
        given[name] = text
    return {**own, **parse(config, given)}


def add_zookeeper(parser: argparse.ArgumentParser, *, timeout: float | None = TIMEOUT) -> None:
    """`--zookeeper`, which is the cluster's address; required unless the environment has it. And how long
    its answers are waited for."""
    if timeout is not None:
        add_timeout(parser, timeout)
    known = os.environ.get(ENVIRONMENT)
    parser.add_argument(
        "--zookeeper",
        metavar="HOST:PORT[/CHROOT]",
        default=known,
        required=not known,
        help=f"the cluster's ZooKeeper (default: ${ENVIRONMENT})",
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """`--zookeeper` or `--bootstrap`, for commands that can do without ZooKeeper: see `cluster_of`."""
    add_timeout(parser)
    known = any(os.environ.get(name) for name in (ENVIRONMENT, BOOTSTRAP))
    either = parser.add_mutually_exclusive_group(required=not known)
    either.add_argument(
        "--zookeeper",
        metavar="HOST:PORT[/CHROOT]",
        help=f"the cluster's ZooKeeper (default: ${ENVIRONMENT})",
    )
    either.add_argument(
        "--bootstrap",
        metavar="HOST:PORT,...",
        help=f"some of its brokers, in place of ZooKeeper (default: ${BOOTSTRAP}, without ${ENVIRONMENT})",
    )


def cluster_of(args: argparse.Namespace, *, guarded: bool = False) -> dict[str, Any]:
    """How a client finds the cluster; `args` has what the environment says from now on."""
    if not (args.zookeeper or args.bootstrap):
        args.zookeeper = os.environ.get(ENVIRONMENT)
        args.bootstrap = None if args.zookeeper else os.environ.get(BOOTSTRAP)
    found = {"bootstrap": args.bootstrap}
    if args.zookeeper:
        found = {"zookeeper": connecting(args, guarded=guarded)}
    return {**found, "request_timeout": args.timeout}


def add_output(parser: argparse.ArgumentParser) -> None:
    """`-o table|json`, for commands that print a table."""
    parser.add_argument(
        *("-o", "--output"),
        choices=("table", "json"),
        default="table",
        help="default: table",
    )


def typed(read: Callable[[str], _T]) -> Callable[[str], _T]:
    """A type of argparse's that says what `read` says about a text, and not the name of a function."""

    def parse(text: str) -> _T:
        try:
            return read(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def at_least_one(text: str) -> int:
    """A type of argparse's: a count."""
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def port(text: str) -> int:
    """A type of argparse's: a port to listen at, 0 is a free one."""
    number = whole_number(text)
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError(f"{number} is not a port")
    return number


def waiting_time(text: str) -> float:
    """So many seconds to wait. Raises ConfigError."""
    number = seconds(text)
    if not 0 < number <= LONGEST_WAIT:
        raise ConfigError(f"{text!r} is no time to wait: give more than 0 seconds, and 1d at most")
    return number


def point_in_time(text: str) -> datetime:
    """A time, or one so long ago: -15m. Raises ConfigError."""
    if not text.startswith("-"):
        return moment(text)
    try:
        return datetime.now(UTC) - duration(text[1:])
    except OverflowError:
        raise ConfigError(f"{text!r} is longer ago than any calendar reaches") from None


def whole_number(text: str) -> int:
    """A type of argparse's, which would say the name of this function about what is none."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def add_schema_context(parser: argparse.ArgumentParser) -> None:
    """`--schema-context`: what subjects are to begin with, nothing for the default one."""

    def beginning(text: str) -> str:
        if text and (text[0] != "." or ":" in text):
            raise argparse.ArgumentTypeError(f"{text} is no context: write .NAME")
        return text and f":{text}:"

    parser.add_argument(
        "--schema-context",
        type=beginning,
        metavar=".NAME",
        default="",
        help="where schemas are and have their ids, if not in the default context",
    )


def text_of(path: Path) -> str:
    """The text of a file. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} cannot be read: it is not UTF-8") from None


def write_text(path: Path, text: str) -> None:
    """Have a file with this text: whole, or what was there before. A pipe gets it as it comes.

    Where a link leads to a file, that one gets it. Raises ConfigError.
    """
    try:
        if path.is_file() or not path.exists():
            path = Path(os.path.realpath(path))
            new = path.with_name(f"{path.name}.new")
            try:
                new.write_text(text, encoding="utf-8")
                os.replace(new, path)
            except OSError:
                new.unlink(missing_ok=True)
                raise
        else:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, too, so that what is under way ends in order."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def connecting(
    args: argparse.Namespace, *, guarded: bool = False, create: bool = False
) -> "Connect":
    """What opens a session at `--zookeeper` within `--timeout`."""
    from folkmoot.coordination.connector import connect

    limit = args.timeout
    return partial(connect, args.zookeeper, connect_timeout=limit, guarded=guarded, create=create)


def admin_of(args: argparse.Namespace) -> "Admin":
    """What administers the cluster at `--zookeeper`, within `--timeout`."""
    from folkmoot.admin.admin import Admin

    return Admin(
        zookeeper=connecting(args),
        client_id="folkmoot-admin",
        session_timeout=SESSION_TIMEOUT,
        timeout=args.timeout,
    )


@contextmanager
def session_of(args: argparse.Namespace) -> Iterator["Session"]:
    """A short ZooKeeper session at `--zookeeper`. Raises ZooKeeperUnreachable."""
    session = connecting(args)(SESSION_TIMEOUT)
    try:
        yield session
    finally:
        session.close()
