"""`folkmoot completion`: what makes a shell complete words, and the words, for which the shell asks.

It asks this program at every Tab, so that no list of options lies anywhere that could be out of date.
"""

import argparse
from collections.abc import Sequence
from typing import Final

from folkmoot.console.parser import Parser

WORDS: Final = "words"
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
    parser.add_argument("typed", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


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
    parser, _ = parser.walk(before)
    option = parser.option(before[-1]) if before else None
    if option is not None and option.nargs is None:
        found = [str(each) for each in option.choices or ()]
    elif word.startswith("-"):
        found = [name for name in parser.option_names() if len(name) > 2]
    else:
        choices = [each.choices for each in parser.positionals() if each.choices is not None]
        found = [str(each) for each in (choices[0] if choices else ())]
    return [each for each in found if each.startswith(word) and each != WORDS]
