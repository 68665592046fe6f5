"""Two registries side by side, and the clients, each asking one of them."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from folkmoot.console.running.embedded import EmbeddedZooKeeper
from folkmoot.coordination.paths import LAYOUT
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.foreign.client import Client
from tests.foreign.environments import ENVIRONMENTS, REQUIRED, directory_of, why_not
from tests.foreign.table import CALLS
from tests.registries import registry_process

Start = Callable[[str], Client]


@pytest.fixture(scope="session")
def schemas_zookeeper(zookeeper: EmbeddedZooKeeper, zookeeper_root: KazooClient) -> str:
    """A connect string with a chroot that has schemas of these tests alone."""
    zookeeper_root.create(f"/foreign{LAYOUT}", b'{"version":1}', makepath=True)
    return f"{zookeeper.address}/foreign"


@pytest.fixture(scope="session")
def registries(schemas_zookeeper: str) -> Iterator[list[str]]:
    """The addresses of two that stand side by side."""
    with registry_process(schemas_zookeeper) as one, registry_process(schemas_zookeeper) as other:
        yield [one, other]


@pytest.fixture(scope="session")
def ours(schemas_zookeeper: str) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(schemas_zookeeper) as registry:
        yield registry


@pytest.fixture(scope="session")
def start(registries: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Gives the client of a name, started when it is asked for first."""
    directory, started = tmp_path_factory.mktemp("clients"), dict[str, Client]()
    names = list(CALLS)
    with ExitStack() as stack:

        def start(name: str) -> Client:
            if name not in started:
                (environment,) = (e for e, held in ENVIRONMENTS.items() if name in held.programs)
                need(environment)
                number = names.index(name)
                words = list(ENVIRONMENTS[environment].programs[name])
                words[words.index("URL")] = registries[number % len(registries)]
                errors = directory / f"{number}.log"
                client = Client(name, words, directory_of(environment), errors)
                started[name] = stack.enter_context(client)
            return started[name]

        yield start


def need(environment: str) -> Path:
    """Where it is; without it the test is skipped, or fails where it must not be."""
    if (why := why_not(environment)) is not None:
        (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)(why)
    return directory_of(environment)


@pytest.fixture
def client(request: pytest.FixtureRequest, start: Start) -> Client:
    return start(request.param)


@pytest.fixture
def subject() -> str:
    """A name that nobody has."""
    return f"s{uuid4().hex[:10]}"
