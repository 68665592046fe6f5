"""What the docs' tutorial and how-to pages show is true: their blocks run, in order, as printed."""

import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import folkmoot
from folkmoot import FolkmootError, RetriableError
from folkmoot.brokers.replication.replica_state import NEXT_ROLES
from folkmoot.console.options.cluster import ENVIRONMENT
from folkmoot.console.running.embedded import EmbeddedZooKeeper
from folkmoot.console.running.processes import EmbeddedCluster
from tests import databases
from tests.console.cluster import parsed
from tests.pages import blocks_of, follow
from tests.registries import registry_process
from tests.tree import ROOT

DOCS = ROOT / "docs"
CONTAINERS = DOCS / "howto" / "containers.md"  # integration/test_docs.py follows it
PAGES = [DOCS / "tutorial.md", DOCS / "schemas.md", *sorted((DOCS / "howto").glob("*.md"))]
RUN = {"python", "console"}
FROM_CONFLUENT = DOCS / "howto" / "from-confluent-kafka.md"


@pytest.fixture(scope="module")
def results() -> Iterator[str]:
    """The address of a PostgreSQL database."""
    if (why_not := databases.why_no_postgresql()) is not None:
        pytest.skip(why_not)
    with databases.postgresql() as address:
        yield address


@pytest.fixture(scope="module")
def cluster(
    zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedCluster]:
    """One of their own: pages use names that others use as well. As `folkmoot dev` starts it."""
    connect_string = f"{zookeeper.address}/docs"
    directory = tmp_path_factory.mktemp("docs")
    with EmbeddedCluster(directory, 3, connect_string, default_replicas=3) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [each for each in PAGES if each != CONTAINERS], ids=lambda page: page.stem
)
def test_a_page_can_be_followed_block_by_block(
    page: Path, cluster: EmbeddedCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = {ENVIRONMENT: cluster.zookeeper}
    if page.stem == "postgresql":
        environment["RESULTS"] = request.getfixturevalue("results")
    with ExitStack() as stack:
        if page.stem == "schemas":
            environment["REGISTRY"] = stack.enter_context(registry_process(cluster.zookeeper))
        follow(page, tmp_path, environment)


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    assert {block.language for page in PAGES for block in blocks_of(page)} == RUN | {
        *("json", "yaml")
    }


def test_alarms_are_about_metrics_that_there_are() -> None:
    told = (DOCS / "operations.md").read_text()
    (rules,) = (
        each for each in blocks_of(DOCS / "howto" / "watching.md") if each.language == "yaml"
    )
    names = set(re.findall(r"folkmoot_\w+", rules.text))
    assert names
    assert {name for name in names if f"| `{name}" not in told} == set()


def ours() -> list[str]:
    """The right column of the table of words, word by word."""
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|", FROM_CONFLUENT.read_text(), re.MULTILINE)
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize("word", ours())
def test_a_word_that_takes_the_place_of_confluent_kafkas_exists(word: str) -> None:
    if word.startswith("folkmoot "):
        words = shlex.split(word)[1:]
        assert parsed(*words, "--zookeeper", "host:1")
        return
    found = re.fullmatch(r"(\w+)(?:\.(\w+))?(?:\((\w+)=.*\))?", word)
    assert found is not None
    name, member, option = found.groups()
    public = getattr(folkmoot, name)
    assert member is None or member in {*dir(public), *inspect.get_annotations(public)}
    if option is not None:
        called = public if member is None else getattr(public, member)
        assert option in inspect.signature(called).parameters


def test_every_public_error_says_what_to_do_and_whether_it_may_go_away() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (yes|no) \| \S.* \|$", (DOCS / "errors.md").read_text(), re.MULTILINE
    )
    public = {name: getattr(folkmoot, name) for name in folkmoot.__all__}
    errors = {
        name: "yes" if issubclass(cls, RetriableError) else "no"
        for name, cls in public.items()
        if isinstance(cls, type) and issubclass(cls, Exception)
    }
    assert sorted(rows) == sorted(errors.items())


def test_a_page_that_is_named_is_linked() -> None:
    """That links lead somewhere is looked after by the site's build."""
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        assert not re.findall(r"(?<!\[)`(?:docs/)?[a-z/-]+\.md`", page.read_text()), page


def test_every_page_is_in_the_sites_navigation() -> None:
    shown = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert sorted(shown) == sorted(pages | {"reference.md"})  # which `make docs` makes


def test_each_drawing_has_a_source_and_is_shown() -> None:
    sources = {each.stem for each in (DOCS / "drawings").glob("*.dot")}
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    shown = set(re.findall(r"assets/(\w+)\.svg", pages))
    assert (
        sources | {"recording"} == shown == {each.stem for each in (DOCS / "assets").glob("*.svg")}
    )


def test_the_drawing_of_roles_has_the_changes_that_are_legal() -> None:
    source = (DOCS / "drawings" / "roles.dot").read_text()
    arrows = re.findall(r"(\w+) -> (\w+);", source)
    legal = {(role.value, then.value) for role, after in NEXT_ROLES.items() for then in after}
    assert set(arrows) == legal


def test_the_reference_has_every_public_name_with_its_methods() -> None:
    """It is made in a process of its own, where signatures are those of plain Python."""
    words = [sys.executable, "-c", "from tests.reference import page; print(page())"]
    text = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    headings = set(re.findall(r"^##+ (\S+)$", text, re.MULTILINE))
    for name in folkmoot.__all__:
        public = getattr(folkmoot, name)
        assert name in headings or issubclass(public, FolkmootError)
    assert {"Producer.send", "AsyncConsumer.poll", "Admin.reset_offsets"} <= headings
    assert "async def poll(self, timeout: float = 1.0" in text
