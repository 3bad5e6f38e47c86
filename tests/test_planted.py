"""Each fault of tests/planted.toml can still be planted; whether it is found, `make planted` says."""

from __future__ import annotations

from tests.planted import faults


def test_each_fault_fits_the_code_and_has_its_tests() -> None:
    listed = faults()
    assert [f"{fault.name}: {why}" for fault in listed if (why := fault.misfit())] == []
    assert len({fault.name for fault in listed}) == len(listed) > 40
