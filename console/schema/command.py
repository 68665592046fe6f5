"""`folkmoot schema`: its actions and their options."""

import argparse
from pathlib import Path
from typing import Final

from folkmoot.console.options import add_output, add_zookeeper, at_least_one

LEVELS: Final = (
    *("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE"),
    *("FULL", "FULL_TRANSITIVE", "NONE"),
)
MODES: Final = ("READWRITE", "READONLY", "IMPORT")

_Actions = argparse._SubParsersAction
_Parser = argparse.ArgumentParser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_changes(actions)
    _add_looks(actions)
    _add_judgements(actions)
    _add_settings(actions)
    _add_transfers(actions)
    for name, action in actions.choices.items():
        add_zookeeper(action)
        action.set_defaults(action=name)
        if name not in ("delete", "export", "import"):
            add_output(action)


def _add_changes(actions: "_Actions[_Parser]") -> None:
    register = actions.add_parser("register", help="make a schema a subject's next version")
    _add_subject(register)
    _add_schema(register)
    register.add_argument(
        "--normalize", action="store_true", help="what means the same is the same schema"
    )
    delete = actions.add_parser(
        "delete",
        help="delete a subject, or a version of it",
        description="What was deleted is no longer listed nor judged by; its id can still be read. With "
        "--permanent what was deleted before is gone for good.",
    )
    _add_subject(delete)
    delete.add_argument("--version", type=at_least_one, metavar="N", help="this version alone")
    delete.add_argument("--permanent", action="store_true", help="for good; it was deleted before")
    delete.add_argument("--yes", action="store_true", help="do not ask for the name again")


def _add_looks(actions: "_Actions[_Parser]") -> None:
    get = actions.add_parser("get", help="show a schema")
    get.add_argument("subject", metavar="SUBJECT", nargs="?", help="not needed with --id")
    _add_version(get, "latest")
    get.add_argument(
        "--id",
        type=at_least_one,
        metavar="ID",
        help="the schema of this id, in the context of SUBJECT: :.name:",
    )
    get.add_argument(
        "--resolved", action="store_true", help="with all that it refers to written out"
    )
    listing = actions.add_parser("list", help="all subjects")
    listing.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only those")
    versions = actions.add_parser("versions", help="the versions of a subject and their ids")
    _add_subject(versions)
    for action in (get, listing, versions):
        action.add_argument("--deleted", action="store_true", help="deleted ones, too")


def _add_judgements(actions: "_Actions[_Parser]") -> None:
    check = actions.add_parser(
        "check",
        help="say whether a schema may become a subject's next version",
        description="Exits with 0 if `register` would take it, else with 1 and the reasons.",
    )
    _add_subject(check)
    _add_schema(check)
    _add_version(check, "those that its level names")
    diff = actions.add_parser(
        "diff",
        help="say what changes for readers and for writers",
        description="From a subject's version to a schema in a file, or to another version. Without any "
        "of them from the version before the last to the last.",
    )
    _add_subject(diff)
    diff.add_argument("file", metavar="FILE.avsc", type=Path, nargs="?")
    diff.add_argument("--from", dest="old", type=at_least_one, metavar="N", help="this version")
    diff.add_argument("--to", dest="new", type=at_least_one, metavar="N", help="this version")
    _add_references(diff)


def _add_settings(actions: "_Actions[_Parser]") -> None:
    for name, what, choices in (
        ("compat", "what new versions owe to older ones", LEVELS),
        ("mode", "whether schemas may be registered", MODES),
    ):
        action = actions.add_parser(name, help=f"show or set {what}")
        action.add_argument(
            "subject", metavar="SUBJECT", nargs="?", help="without it: where a subject says nothing"
        )
        either = action.add_mutually_exclusive_group()
        either.add_argument(
            "--set",
            choices=choices,
            dest="given",
            metavar=name.upper(),
            help=f"one of {', '.join(choices)}",
        )
        either.add_argument("--unset", action="store_true", help="back to what holds for all")
        if name == "mode":
            action.add_argument(
                "--force", action="store_true", help="IMPORT also where there are schemas already"
            )


def _add_transfers(actions: "_Actions[_Parser]") -> None:
    for name, where in (("export", "to"), ("import", "from")):
        action = actions.add_parser(
            name,
            help=f"copy schemas {where} another registry, or {where} a file",
            description="Subjects, versions and ids stay what they are, deleted ones and the levels of "
            "subjects, too. What is there already stays; done twice it is as done once.",
        )
        action.add_argument(
            "place",
            metavar="URL|FILE",
            help="http://[USER:PASSWORD@]HOST:PORT of any registry with Confluent's interface, or a file",
        )
        action.add_argument("--prefix", default="", help="only subjects that begin so")
        action.add_argument(
            "--force", action="store_true", help="also into subjects that have schemas already"
        )
        if name == "import":
            action.add_argument(
                "--skip-invalid",
                action="store_true",
                help="leave out versions that are no valid schemas here, and those that refer to them",
            )


def _add_subject(action: argparse.ArgumentParser) -> None:
    action.add_argument("subject", metavar="SUBJECT")


def _add_schema(action: argparse.ArgumentParser) -> None:
    action.add_argument("file", metavar="FILE.avsc", type=Path)
    _add_references(action)


def _add_references(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="NAME=SUBJECT:VERSION",
        help="where a type is that the schema names and does not have; may be given several times",
    )


def _add_version(action: argparse.ArgumentParser, default: str) -> None:
    action.add_argument(
        "--version", type=at_least_one, metavar="N", help=f"this version (default: {default})"
    )


def run(args: argparse.Namespace) -> int:
    from folkmoot.console.schema import actions

    return actions.run(args)
