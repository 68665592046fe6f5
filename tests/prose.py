"""Sentences that need two readings, in docstrings, comments, messages and pages: `python -m tests.prose`.

A sentence is marked if it has more than 30 words, begins with a clause in place of its subject, or uses a
word that leaves out who acts. The mark is a hint: `tests/test_tidy.py` only keeps the share from growing.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.tree import ROOT

MOST_WORDS: Final = 30
FEWEST_WORDS: Final = 4
"""Shorter texts are no sentences."""
_NO_SUBJECT: Final = re.compile(
    r"(Of|Where|Who|Whoever|What|Whether|So many|So long|So much|As long as|In whose|Behind|Nobody|Nothing"
    r"|Somebody)\b"
)
_NO_ACTOR: Final = re.compile(
    r"\b(told|tells|is said|was said|nobody|whoever|somebody|goes on|go on|is to be|are to be|so many"
    r"|so long|by itself|who comes|what comes|to whom|of whom|whose turn)\b",
    re.IGNORECASE,
)


def is_marked(sentence: str) -> bool:
    is_long = len(sentence.split()) > MOST_WORDS
    return is_long or bool(_NO_SUBJECT.match(sentence) or _NO_ACTOR.search(sentence))


def sentences_in(folder: str) -> Iterator[tuple[Path, str]]:
    """Each sentence of a top-level folder, with its file; `docs` includes the README."""
    files = sorted((ROOT / folder).rglob("*"))
    if folder == "docs":
        files = [path for path in files if path.name != "reference.md"] + [ROOT / "README.md"]
    for path in files:
        if path.suffix in _READERS and not path.name.startswith("test_"):
            for text in _READERS[path.suffix](path.read_text(encoding="utf-8")):
                for sentence in _sentences(text):
                    yield path, sentence


def _sentences(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", re.sub(r"```.*?```", " ", text, flags=re.DOTALL)):
        parts = re.split(r"(?<=[.!?;]) (?=[A-Z`])", " ".join(block.split()))
        yield from (part for part in parts if len(part.split()) >= FEWEST_WORDS)


def _page(source: str) -> Iterator[str]:
    """Lines of text; tables and headings have no sentences."""
    lines = re.sub(r"```.*?```", "", source, flags=re.DOTALL).splitlines()
    return (line for line in lines if not line.startswith(("#", "|", "<", "!")))


def _cython(source: str) -> Iterator[str]:
    yield from re.findall(r'"""(.*?)"""', source, flags=re.DOTALL)
    yield from re.findall(r"# (.+)", source)


def _python(source: str) -> Iterator[str]:
    """Texts of several words, and comments, whose lines belong together."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value
    comment: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comment.append(token.string.lstrip("# "))
        elif token.type not in (tokenize.NL, tokenize.NEWLINE):
            yield " ".join(comment)
            comment = []


_READERS: Final = {".md": _page, ".py": _python, ".pyx": _cython}

if __name__ == "__main__":
    for folder in sys.argv[1:]:
        for path, sentence in sentences_in(folder):
            if is_marked(sentence):
                print(f"{path.relative_to(ROOT)}: {sentence}")
