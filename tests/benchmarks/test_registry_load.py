"""The load on the registry's server, in small: every answer counts, and what is no success is an error."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks import registry_load
from benchmarks.registry_load import RefusedError, lookups, registrations
from folkmoot.console.running.processes import RegistryProcess
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.memory_zookeeper import MemoryZooKeeper


def test_subjects_in_bulk_are_what_registering_leaves() -> None:
    ensemble = MemoryZooKeeper()
    for count in (3, 5, 5):
        registry_load.create_subjects(ensemble.connect(), count)
    registry = SchemaRegistry(ensemble.connect())
    subjects = [f":.stock:topic-{n}-value" for n in range(5)]
    assert registry.subjects(":.stock:topic") == subjects
    registered = registry.register(":.stock:registered", '"long"')
    assert registry.versions_of(1, subject=":.stock:") == [
        (subject, 1) for subject in (":.stock:registered", *subjects)
    ]
    assert registry.version(subjects[4], 1) == replace(registered, subject=subjects[4])
    for subject in (":.stock:registered", subjects[4]):
        registry.delete_subject(subject)
        registry.delete_subject(subject, permanent=True)
    assert registry.subjects(":*:", deleted=True) == subjects[:4]


@pytest.mark.slow
def test_look_ups_and_registrations_are_measured(tmp_path: Path, chroot: str) -> None:
    looked_up = lookups(chroot, tmp_path, 0.5)
    assert looked_up.per_second > 0
    assert 0 < looked_up.p99 < 60
    assert looked_up.resident > 1_000_000
    registered = registrations(chroot, tmp_path, 30)
    assert registered.per_second > 0
    with SchemaRegistry(chroot) as registry:
        assert len(registry.subjects("new-")) == 30
        assert len(registry.subjects("lookup-")) == registry_load.SCHEMAS


@pytest.mark.slow
def test_an_answer_that_is_no_success_ends_the_measurement(tmp_path: Path, chroot: str) -> None:
    request = registry_load._get("/schemas/ids/7")
    with (
        RegistryProcess(tmp_path / "r.log", chroot) as server,
        pytest.raises(RefusedError, match="40403"),
    ):
        asyncio.run(registry_load._drive([server], [iter([request])]))
