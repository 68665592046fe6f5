"""`folkmoot completion`: what makes a shell complete words, and the words, for which the shell asks.

It asks this program at every Tab, so that no list of options lies anywhere that could be out of date.
"""

import argparse
import os
from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import pairwise
from typing import Final

from folkmoot.console.options import ENVIRONMENT, SESSION_TIMEOUT
from folkmoot.console.parser import Parser
from folkmoot.console.spark.apps import apps
from folkmoot.protocol.errors import FolkmootError

WORDS: Final = "words"
PATIENCE: Final = 1.0
"""So many seconds ZooKeeper is waited for: somebody has pressed Tab."""
BASH: Final = """\
_folkmoot() {
    local IFS=$'\\n'
    COMPREPLY=($(folkmoot completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _folkmoot folkmoot
"""
ZSH: Final = """\
#compdef folkmoot
_folkmoot() {
    local -a found
    found=(${(f)"$(folkmoot completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _folkmoot folkmoot
"""
FISH: Final = """\
function __folkmoot
    set -l found (folkmoot completion words (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c folkmoot -f -a '(__folkmoot)'
"""
SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = """\
  bash   echo 'eval "$(folkmoot completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(folkmoot completion zsh)"' >> ~/.zshrc     (behind compinit)
  fish   folkmoot completion fish > ~/.config/fish/completions/folkmoot.fish"""
    parser.add_argument("shell", choices=(*SCRIPTS, WORDS), metavar="{bash,zsh,fish}")
    typed = parser.add_argument("typed", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    typed.required = False  # argparse would say that it is missing


def run(args: argparse.Namespace) -> int:
    if args.shell != WORDS:
        print(SCRIPTS[args.shell], end="")
        return 0
    *before, word = args.typed or [""]
    for each in candidates(args.whole(before), before, word):
        print(each)
    return 0


def candidates(parser: Parser, before: Sequence[str], word: str) -> list[str]:
    """What `word`, which is begun, may become behind the words before it; nothing where a file may stand."""
    parser, _, given = parser.walk(before)
    option = parser.option(before[-1]) if before else None
    if option is not None and option.nargs is None:
        found = _values(option, before)
    elif word.startswith("-"):
        found = [name for name in parser.option_names() if len(name) > 2]
    else:
        arguments = parser.positionals()
        last = arguments[-1:] if arguments and arguments[-1].nargs == "*" else []
        following = arguments[given : given + 1] or last
        # A topic that is to be made has a name that none has yet.
        is_new = parser.prog.endswith("topic create")
        found = _values(following[0], before) if following and not is_new else []
    return [each for each in found if each.startswith(word) and each != WORDS]


def _values(argument: argparse.Action, before: Sequence[str]) -> list[str]:
    """What may stand for an argument or behind an option: choices, or names that the cluster knows."""
    if argument.choices is not None:
        return [str(each) for each in argument.choices]
    if argument.dest == "app":
        return list(apps())
    given = (two for one, two in pairwise(before) if one == "--zookeeper")
    joined = (each.partition("=")[2] for each in before if each.startswith("--zookeeper="))
    address = next(given, None) or next(joined, None) or os.environ.get(ENVIRONMENT)
    if argument.dest not in ("topic", "group") or not address:
        return []
    with suppress(FolkmootError):  # who waits for a word is told nothing of it
        return _names(argument.dest, address)
    return []


def _names(kind: str, address: str) -> list[str]:
    """All topics or groups of a cluster. Raises ZooKeeperUnreachable."""
    from folkmoot.coordination import topics
    from folkmoot.coordination.connector import connect
    from folkmoot.coordination.groups import inspection
    from folkmoot.coordination.zookeeper.execute import execute

    with closing(connect(address, SESSION_TIMEOUT, connect_timeout=PATIENCE)) as session:
        names = topics.names() if kind == "topic" else inspection.names()
        return execute(session, names, PATIENCE)
