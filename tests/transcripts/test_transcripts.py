"""Every mode, driver and reader leaves what data/ stores, to the last byte (`python -m tests.transcripts write`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.transcripts.cases import MODES, READERS
from tests.transcripts.transcript import Member, difference, members, ran, readers_of, stored

AT_ONCE, IN_ORDER = ("replay-1", "replay-3", "bounded"), ("parts", "stream", "unbounded")


def cases() -> Iterator[Any]:
    """In each mode a replay by one process, and each other driver in one mode, with one reader: tests/conformance runs
    all drivers in each mode, and tests/unit all that a reader reads. The other cases are nightly."""
    others = [driver for driver in (*AT_ONCE, *IN_ORDER) if driver != "replay-1"]
    for number, mode in enumerate(MODES):
        for place, (driver, reader) in enumerate(members(mode)):
            readers = readers_of(driver)
            is_shown = reader == readers[(number + place // len(READERS)) % len(readers)] and (
                driver == "replay-1" or number == 2 * others.index(driver)
            )
            yield pytest.param(mode, (driver, reader), marks=() if is_shown else pytest.mark.nightly)


@pytest.mark.parametrize(("mode", "member"), cases(), ids=lambda value: "-".join(value) if len(value) == 2 else value)
def test_a_run_leaves_what_is_stored(mode: str, member: Member) -> None:
    found = difference(stored(mode)[member], ran(mode, member))
    if found is not None:
        pytest.fail(f"{mode}, {', '.join(member)}: {found}\n{__doc__}", pytrace=False)


def test_what_is_stored_is_what_is_run() -> None:
    for mode in MODES:
        assert sorted(stored(mode)) == sorted(members(mode))


def test_drivers_that_must_agree_are_stored_as_one() -> None:
    """All drivers where users pay for hits alone, or in rounds in each window; with other names those that see all of a
    user at once, and those that see one window after the other. Parts have noise of their own, by their nonces alone:
    whatever file the log is in.
    """
    for mode in MODES:
        found = stored(mode)
        of_driver = {driver: {tuple(found[one]["report"]) for one in found if one[0] == driver} for driver, _ in found}
        is_split = mode.startswith("looks")
        in_order = tuple(driver for driver in IN_ORDER if driver != "parts")
        kinds = [AT_ONCE, in_order] if is_split else [AT_ONCE + in_order]
        answers = [set().union(*(of_driver.get(driver, set()) for driver in kind)) for kind in kinds]
        assert all(len(answer) <= 1 for answer in answers), mode
        assert len(set().union(*answers)) == sum(len(answer) for answer in answers), mode
        if "parts" in of_driver:
            assert len(of_driver["parts"]) == 1, mode
            (whole,) = of_driver["stream"]
            assert of_driver["parts"] != {whole}, mode


def test_the_log_uses_all_of_a_mode() -> None:
    """Else its transcript would show little."""
    for mode in MODES:
        found = stored(mode)["replay-1", "csv"]
        assert len(found["report"]) >= 7, mode
        assert "rejected: 15" in found["counts"], mode
        if mode.startswith("looks"):
            assert "unpaid: 0" not in found["counts"], mode
    assert len(stored("hits-with-counts")["replay-1", "csv"]["report"]) < len(
        stored("hits")["replay-1", "csv"]["report"]
    )
    labels, counted = (" ".join(stored(mode)["replay-1", "csv"]["report"]) for mode in ("hits", "hits-with-counts"))
    assert '"above"' in labels
    assert '"between"' in labels
    assert '"noisy_count": 3' in counted


def test_a_changed_line_is_told_with_both_sides() -> None:
    stored_lines = {"report": ["a", "b"], "counts": ["events: 3"]}
    assert difference(stored_lines, {"report": ["a", "b"], "counts": ["events: 3"]}) is None
    changed = {"report": ["a", "b"], "counts": ["events: 4"]}
    assert difference(stored_lines, changed) == "counts, line 1\n  stored: events: 3\n  now:    events: 4"
    assert difference(stored_lines, {"report": ["a"]}) == "report, line 2\n  stored: b\n  now:    None"
    assert difference({}, {"header": ["x"]}) == "header, line 1\n  stored: None\n  now:    x"
