"""Questions before what cannot be undone."""

import sys

from folkmoot.console.exit_codes import NotConfirmed


def confirm(warning: str, kind: str, name: str, participle: str) -> None:
    """Ask the user to type the name of what would be lost. Raises NotConfirmed."""
    print(f"{warning}Type its name to continue: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # the input has ended on the question's line
        print(file=sys.stderr)
    if answer.strip() != name:
        raise NotConfirmed(f"{kind} {name} was not {participle}: type its name, or use --yes")
