"""`make mutants`: what can be changed, and which changes a folder's tests have seen."""

import ast
from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.mutations import mutated, mutations

SOURCE = '''"""A docstring with 1 < 2."""

LIMIT: "Final[1]" = 10


def kept(number: int = 3, *, name: str = "a" + "b") -> bool:
    if not number or (number
                      is not None and name in "ä"):
        number += -1
    return 0 <= number - 1 < LIMIT
'''


def test_every_mutation_changes_one_thing_and_compiles() -> None:
    found = mutations(SOURCE)
    for each in found:
        after = mutated(SOURCE, each)
        ast.parse(after)
        assert after != SOURCE
        assert [*after.splitlines()][: each.line - 1] == SOURCE.splitlines()[: each.line - 1]
    changes = {(each.kind, each.old, each.new) for each in found}
    assert changes >= {
        ("comparison", "is not", "is"),
        ("comparison", "in", "not in"),
        ("comparison", "<=", "<"),
        ("comparison", "<", "<="),
        ("boolean", "or", "and"),
        ("boolean", "and", "or"),
        ("negation", "not ", ""),
        ("sign", "+", "-"),
        ("sign", "-", "+"),
        ("constant", "10", "11"),
        ("constant", "10", "9"),
    }
    assert not {each.line for each in found} & {1, 2}
    assert ("sign", "+", "-") not in {(e.kind, e.old, e.new) for e in found if e.line == 6}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("protocol", "tests/protocol", "src/folkmoot"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    root = tmp_path / "root"
    (root / "src/folkmoot/__init__.py").touch()
    (root / "src/folkmoot/protocol").symlink_to("../../protocol")
    (root / "protocol/__init__.py").touch()
    (root / "protocol/ages.py").write_text(
        "def is_old(age, limit):\n    return age > limit\n\n\ndef unseen(age):\n    return age - 1\n"
    )
    (root / "tests/protocol/test_ages.py").write_text(
        "from folkmoot.protocol.ages import is_old\n\n\n"
        "def test_is_old():\n    assert is_old(3, 2)\n    assert not is_old(2, 2)\n"
    )
    return root


def test_survivors_are_told_and_nothing_is_tried_twice(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--seed", "5", "--state", str(tmp_path / "state"), "--timeout", "60", "--count"]
    before = (root / "protocol/ages.py").read_text()
    assert command.main([*arguments, "2"], root) == 0
    state = tmp_path / "state"
    state.write_bytes(state.read_bytes() + b'{"cut off')
    assert command.main([*arguments, "100"], root) == 0
    assert (root / "protocol/ages.py").read_text() == before
    said = capsys.readouterr().out
    assert "protocol/ages.py:6: sign: '-' became '+'" in said
    assert "protocol/ages.py:2: comparison" not in said
    assert "1 of 4 killed (25 %)" in said
    monkeypatch.setattr(command, "run_tests", None)
    assert command.main([*arguments, "100"], root) == 0
    assert "4 mutants with seed 5, 0 still to be tried" in capsys.readouterr().out


def test_tests_that_fail_by_themselves_are_no_measure(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "tests/protocol/test_ages.py").write_text("def test_nothing():\n    assert False\n")
    assert command.main(["--state", str(tmp_path / "state")], root) == 1
    assert "tests of protocol fail without any mutant" in capsys.readouterr().out


def test_the_same_seed_draws_the_same_and_more_of_them_begin_the_same(root: Path) -> None:
    code = command.sources(root)
    every = list(command.drawn(code, 7))
    assert list(command.drawn(code, 7)) == every
    assert len(every) == len(set(map(str, every))) == 4


def test_folders_that_were_named_are_drawn_from_alone(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "network").mkdir()
    (root / "network/ports.py").write_text("PORT = 7\n")
    state = ["--state", str(tmp_path / "state"), "--timeout", "60"]
    assert command.main([*state, "--folders", "protocol"], root) == 0
    said = capsys.readouterr().out
    assert "4 mutants with seed 1" in said
    assert "network" not in said
    monkeypatch.setattr(command, "run_tests", lambda *_: "tests/network/test_ports.py")
    monkeypatch.setattr(command.Trees, "tests_alone", lambda *_: "")
    assert command.main(state, root) == 0
    assert "6 mutants with seed 1, 2 still to be tried" in capsys.readouterr().out


def test_tests_of_the_same_name_and_room_come_first(tmp_path: Path) -> None:
    names = ["test_a.py", "storage/test_b.py", "storage/test_log.py", "server/test_log_files.py"]
    for name in names:
        path = tmp_path / "tests/brokers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = command.tests_of(tmp_path, "brokers/storage/log.py")
    assert [each.removeprefix("tests/brokers/") for each in found] == [
        *("storage/test_log.py", "server/test_log_files.py", "storage/test_b.py", "test_a.py"),
    ]
