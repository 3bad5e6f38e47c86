"""Every mode and reader leaves what data/ stores, to the last byte (`python -m tests.transcripts write`). That all
other drivers publish the same: tests/conformance."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.transcripts.cases import MODES
from tests.transcripts.drivers import DATA, MEMBERS, ran


def cases() -> Iterator[Any]:
    """In each mode a replay, each by another reader, and parts in one mode. The other cases are nightly."""
    for number, mode in enumerate(MODES):
        for place, member in enumerate(MEMBERS):
            is_shown = place == number % 4 or (mode, member) == ("contributions-sliding", "parts")
            marks = [pytest.mark.xdist_group(mode), *([] if is_shown else [pytest.mark.nightly])]
            yield pytest.param(mode, member, marks=marks)


def stored(mode: str) -> dict[str, list[str]]:
    return json.loads((DATA / f"{mode}.json").read_text())


@pytest.mark.parametrize(("mode", "member"), cases())
def test_a_run_leaves_what_is_stored(tmp_path: pathlib.Path, mode: str, member: str) -> None:
    of_mode = stored(mode)
    for name, lines in ran(tmp_path, mode, member).items():
        assert lines == of_mode[name], name


@pytest.mark.parametrize("mode", MODES)
def test_the_log_uses_all_of_its_mode(mode: str) -> None:
    """Else its transcript would show little. Parts have noise of their own, by their nonces."""
    found = stored(mode)
    report = found["report"]
    assert len(report) >= 8
    assert found["report in parts"] != report
    assert "rejected: 15" in found["counts, csv"]
    assert ("unpaid: 0" in found["counts, csv"]) == mode.startswith("hits")
    words = {"hits": ('"above"', '"between"'), "hits-with-counts": ('"noisy_count":3',)}.get(mode, ())
    assert all(word in " ".join(report).replace(": ", ":") for word in words)
