"""Load on the schema registry's server: look-ups by id and registrations, over connections kept open."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

from benchmarks.measuring import memory
from folkmoot.console.running.processes import RegistryProcess
from folkmoot.coordination import paths
from folkmoot.coordination.schemas.names import parse
from folkmoot.coordination.schemas.nodes import Subject, Version, encode
from folkmoot.coordination.zookeeper.execute import execute_all
from folkmoot.coordination.zookeeper.operations import Create, Multi, Recipe
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.schemas.registry.schema_registry import SchemaRegistry

SCHEMAS = 100
"""Different schemas that are looked up."""
CONNECTIONS = 8
REGISTRARS = 20
SERVERS = 3
STOCK_CONTEXT = ":.stock:"
PREFIX = "topic-4"
PAGE = slice(5_000, 5_100)
"""Of the subjects that begin so."""


class Load(NamedTuple):
    """What was measured: requests a second, their 99th percentile in seconds, and bytes resident at most of
    one server."""

    per_second: float
    p99: float
    resident: int


class RefusedError(Exception):
    """A request was not answered with status 200."""


def lookups(zookeeper: str, work: Path, seconds: float) -> Load:
    """Schemas by id, cached, of one server process. `zookeeper` is a connect string, `work` a folder."""
    with RegistryProcess(work / "registry.log", zookeeper) as server:
        return asyncio.run(_lookups(server, seconds))


def registrations(zookeeper: str, work: Path, count: int) -> Load:
    """`count` new schemas, by REGISTRARS over SERVERS processes, each under a subject of its own."""
    servers = [RegistryProcess(work / f"registry-{n}.log", zookeeper) for n in range(SERVERS)]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_until_ready()
        return asyncio.run(_registrations(servers, count))
    finally:
        for server in servers:
            server.stop()


def create_subjects(session: Session, count: int) -> None:
    """`count` subjects in a context of their own, `topic-0-value` on, that share one schema.

    Written in bulk, as registering each would have left them; those that are there stay.
    """
    with SchemaRegistry(session) as registry:
        number = registry.register(f"{STOCK_CONTEXT}topic-0-value", '"long"').id
        existing_count = len(registry.subjects(STOCK_CONTEXT))
    context = parse(STOCK_CONTEXT).context

    def create_names(names: Sequence[str]) -> Recipe[None]:
        subject = encode(Subject(versions=(Version(1, number),)))
        writes: list[Create] = []
        for name in names:
            writes.append(Create(paths.subject(context, name), subject))
            writes.append(Create(paths.listed_subject(context, paths.LIVE_SUBJECTS, name)))
            writes.append(Create(paths.schema_use(context, number, name)))
        yield Multi(tuple(writes))

    names = [f"topic-{n}-value" for n in range(existing_count, count)]
    execute_all(session, (create_names(names[at : at + 200]) for at in range(0, len(names), 200)))


def time_listing(zookeeper: str) -> float:
    """Seconds until a page of the subjects of one prefix is there, in Python."""
    with SchemaRegistry(zookeeper) as registry:
        registry.contexts()  # connected by now
        started_at = time.perf_counter()
        found = registry.subjects(f"{STOCK_CONTEXT}{PREFIX}")[PAGE]
        elapsed_seconds = time.perf_counter() - started_at
    _check_page(found)
    return elapsed_seconds


def time_listing_over_http(zookeeper: str, work: Path) -> float:
    """The same over HTTP, of one server process."""
    page = f"offset={PAGE.start}&limit={PAGE.stop - PAGE.start}"
    path = f"/subjects?subjectPrefix={STOCK_CONTEXT}{PREFIX}&{page}"
    with RegistryProcess(work / "registry.log", zookeeper) as server:
        asyncio.run(_once(server.address, _get("/contexts")))
        started_at = time.perf_counter()
        found = asyncio.run(_once(server.address, _get(path)))
        elapsed_seconds = time.perf_counter() - started_at
    _check_page(found)
    return elapsed_seconds


def _check_page(found: Sequence[str]) -> None:
    if len(found) != PAGE.stop - PAGE.start or not found[0].startswith(f"{STOCK_CONTEXT}{PREFIX}"):
        raise RefusedError(f"{len(found)} subjects are not the page that was asked for")


async def _lookups(server: RegistryProcess, seconds: float) -> Load:
    ids = [
        (await _once(server.address, _registration(f"lookup-{n}")))["id"] for n in range(SCHEMAS)
    ]
    requests = cycle([_get(f"/schemas/ids/{number}") for number in ids])
    await _drive([server], [requests] * CONNECTIONS, until=time.perf_counter() + 0.2 * seconds)
    return await _drive([server], [requests] * CONNECTIONS, until=time.perf_counter() + seconds)


async def _registrations(servers: Sequence[RegistryProcess], count: int) -> Load:
    names = (f"new-{time.time_ns()}-{n}" for n in range(count))
    requests = map(_registration, names)
    return await _drive(servers, [requests] * REGISTRARS)


async def _drive(
    servers: Sequence[RegistryProcess],
    clients: Sequence[Iterator[bytes]],
    until: float = float("inf"),
) -> Load:
    """Each client sends its next request when it has the answer to the last one."""
    elapsed_seconds: list[float] = []

    async def client(server: RegistryProcess, requests: Iterator[bytes]) -> None:
        async with _connection(server.address) as (reader, writer):
            for request in requests:
                started_at = time.perf_counter()
                writer.write(request)
                await _read_response(reader)
                elapsed_seconds.append(time.perf_counter() - started_at)
                if (
                    started_at + elapsed_seconds[-1] > until
                ):  # only now: to connect may take all of the time
                    break

    started_at = time.perf_counter()
    pairs = zip(cycle(servers), clients, strict=False)
    await asyncio.gather(*(client(server, requests) for server, requests in pairs))
    elapsed = time.perf_counter() - started_at
    resident = max(memory(server.pid).resident for server in servers)
    return Load(len(elapsed_seconds) / elapsed, quantiles(elapsed_seconds, n=100)[98], resident)


async def _once(address: str, request: bytes) -> Any:
    async with _connection(address) as (reader, writer):
        writer.write(request)
        return json.loads(await _read_response(reader))


@asynccontextmanager
async def _connection(
    address: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


async def _read_response(reader: asyncio.StreamReader) -> bytes:
    """The body of the next answer. Raises RefusedError."""
    head = await reader.readuntil(b"\r\n\r\n")
    _, _, length = head.lower().partition(b"content-length: ")
    body = await reader.readexactly(int(length.partition(b"\r")[0]))
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RefusedError(f"{head[:50]!r} {body!r}")
    return body


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def _registration(name: str) -> bytes:
    """A request to register a schema of its own under the subject `name`."""
    fields = [{"name": f"field_{n}", "type": ["null", "long"], "default": None} for n in range(10)]
    schema = {"type": "record", "name": "R", "namespace": f"of_{name.replace('-', '_')}"}
    body = json.dumps({"schema": json.dumps({**schema, "fields": fields})}).encode()
    head = (
        f"POST /subjects/{name}/versions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body
