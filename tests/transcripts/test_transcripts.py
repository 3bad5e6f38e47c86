"""Every mode and reader leaves what data/ stores, to the last byte (`python -m tests.transcripts write`). That all
other drivers publish the same: tests/conformance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.transcripts.cases import MODES
from tests.transcripts.transcript import Member, difference, members, ran, stored


def cases() -> Iterator[Any]:
    """In each mode a replay, each by another reader, and parts in one mode. The other cases are nightly."""
    for number, mode in enumerate(MODES):
        for place, member in enumerate(members()):
            is_shown = place == number % 4 or (mode, member[0]) == ("looks-sliding", "parts")
            marks = [pytest.mark.xdist_group(mode), *([] if is_shown else [pytest.mark.nightly])]
            yield pytest.param(mode, member, marks=marks, id="-".join([mode, *member]))


@pytest.mark.parametrize(("mode", "member"), cases())
def test_a_run_leaves_what_is_stored(mode: str, member: Member) -> None:
    found = difference(stored(mode)[member], ran(mode, member))
    if found is not None:
        pytest.fail(f"{mode}, {', '.join(member)}: {found}\n{__doc__}", pytrace=False)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_stored_is_what_is_run_and_the_log_uses_all_of_its_mode(mode: str) -> None:
    """Else its transcript would show little. Parts have noise of their own, by their nonces."""
    found = stored(mode)
    assert sorted(found) == sorted(members())
    replayed = found["replay-1", "csv"]
    assert {tuple(found[member]["report"]) for member in found if member[0] == "replay-1"} == {
        tuple(replayed["report"])
    }
    assert found["parts", "parquet"]["report"] != replayed["report"]
    assert len(replayed["report"]) >= 7
    assert "rejected: 15" in replayed["counts"]
    assert ("unpaid: 0" in replayed["counts"]) == mode.startswith("hits")
    words = {"hits": ('"above"', '"between"'), "hits-with-counts": ('"noisy_count": 3',)}.get(mode, ())
    assert all(word in " ".join(replayed["report"]) for word in words)
