"""The load on the registry's server, in small: every answer counts, and what is no success is an error."""

import asyncio
from pathlib import Path

import pytest

from benchmarks import registry_load
from benchmarks.registry_load import RefusedError, lookups, registrations
from folkmoot.console.processes import RegistryProcess
from folkmoot.schemas.registry.schema_registry import SchemaRegistry


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
