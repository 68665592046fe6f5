"""`folkmoot completion`: scripts that make a shell complete words, and the answers to these scripts.

A script asks this program at every Tab, so that no list of options can be out of date. Click finds the
candidates; here they become what the shell replaces. That is a whole word in zsh and fish, but in bash only
what follows the last `=` or `:` of a word.
"""

import logging
import os
from typing import Any, Final

import click
from click.shell_completion import (
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    shell_complete,
    split_arg_string,
)

VARIABLE: Final = "_FOLKMOOT_COMPLETE"


class WordCompletion(ShellComplete):
    """Candidates with the `--option=` that the word begins with, which click leaves out."""

    breaks = ""
    """At these characters the shell begins a word of its own."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        option, equals, _ = incomplete.partition("=")
        before = f"{option}=" if equals and option.startswith("-") else ""
        start = max((incomplete.rfind(each) for each in self.breaks), default=-1) + 1
        found = [
            CompletionItem((before + each.value)[start:], each.type, each.help)
            if each.type == "plain"
            else each
            for each in super().get_completions(args, incomplete)
        ]
        if found or (incomplete.startswith("-") and not equals):
            return found
        return [CompletionItem(incomplete, type="file")]  # many options take the name of a file


@add_completion_class
class Bash(WordCompletion):
    """Reads the line itself: the words that bash makes of it are cut at `=` and `:`."""

    name = "bash"
    breaks = "=:"
    source_template = """\
%(complete_func)s() {
    local type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            plain) COMPREPLY+=("$value") ;;
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        incomplete = "" if line[-1:].isspace() or not words else words.pop()
        return words, incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.type},{item.value}"


@add_completion_class
class Zsh(WordCompletion, ZshComplete):
    """Zsh replaces the whole word."""


@add_completion_class
class Fish(WordCompletion, FishComplete):
    """Fish replaces the whole word."""


SHELLS: Final[dict[str, type[ShellComplete]]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def command(context: click.Context, shell: str) -> int:
    """Print a script that makes a shell complete commands, options, topics, groups and more.

    \b
    bash   echo 'eval "$(folkmoot completion bash)"' >> ~/.bashrc
    zsh    echo 'eval "$(folkmoot completion zsh)"' >> ~/.zshrc   (after compinit)
    fish   folkmoot completion fish > ~/.config/fish/completions/folkmoot.fish
    """
    print(SHELLS[shell](context.find_root().command, {}, "folkmoot", VARIABLE).source(), end="")
    return 0


def complete_for_shell(cli: click.Command) -> int | None:
    """Print the candidates if a shell asks for them. → the exit code, None if no shell asks."""
    instruction = os.environ.get(VARIABLE)
    if instruction is None:
        return None
    logging.disable()  # a line about a cluster that does not answer would stand in the prompt
    return shell_complete(cli, {}, "folkmoot", VARIABLE, instruction)
