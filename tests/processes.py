"""What Linux tells of a process, which may end, or have another program loaded, while one looks."""

from pathlib import Path


def open_below(directory: Path) -> list[Path]:
    """What this process has open in a directory, once for each descriptor."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            path = link.readlink()
        except FileNotFoundError:
            continue  # the descriptor of this very listing
        if path.is_relative_to(directory):
            found.append(path)
    return found


def told(pid: int, what: str) -> str:
    """A file of its folder in /proc; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/{what}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def threads(pid: int) -> list[str]:
    """Their ids; none if it has ended."""
    try:
        return [each.name for each in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def children(pid: int) -> list[int]:
    """The processes that it has started, whichever of its threads did."""
    lists = [told(pid, f"task/{each}/children") for each in threads(pid)]
    return [int(child) for each in lists for child in each.split()]


def state(pid: int) -> str:
    """The kernel's letter for what it does; X if it has ended, also when nobody has taken note of that."""
    return _letter(told(pid, "stat"))


def thread_states(pid: int) -> set[str]:
    """The letters of all its threads."""
    return {_letter(told(pid, f"task/{each}/stat")) for each in threads(pid)}


def _letter(stat: str) -> str:
    # Behind the name, which may hold anything.
    letter = stat.rpartition(")")[2].split()[:1]
    return "X" if letter in ([], ["Z"]) else letter[0]
