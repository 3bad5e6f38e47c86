"""Every scenario, exactly: the product's mechanisms keep what they claim, and what is known to be broken is seen to be.

The scenarios of a topic are in ``scenarios_<topic>.py``; a new module is found by its name.
"""

from __future__ import annotations

import importlib
import pathlib
import re

import pytest

from tests.privacy.scenarios import Scenario

_ROUNDING = 1e-9  # of the float sums, relative to delta
_CUTS = 100  # tails of probability `cut` may be misplaced, once for a draw; no scenario has so many draws
_CLEARLY = 1.05, 1e-4  # a broken claim is missed by this factor, and by this much; laws are exact

# The start of a scenario's name, and whether its claim is true.
DEMANDED = {
    "AboveThreshold": True,
    "Sparse": True,
    "NumericSparse": True,
    "ThresholdMonitor": True,
    "ThresholdMonitorEvolving": True,
    "individual charging": True,
    "target charging": True,
    "one-shot top-k": True,
    "wrapper": True,
    "two runs": True,
    "PATE, a boundary": True,
    "PATE, low": True,
    "PATE, a student's prior": True,
    "pay for change": True,
    "distinct counts by sketches": True,
    "sketch, one call": True,
    "exponential mechanism": True,
    "online multiplicative weights": True,
    "offline multiplicative weights": True,
    "small database": True,
    "lyu-su-li 1": True,
    "lyu-su-li 2": True,
    "lyu-su-li 3": False,
    "lyu-su-li 4": False,
    "lyu-su-li 5": False,
    "lyu-su-li 6": False,
    "no threshold noise": False,
    "no cutoff": False,
    "cutoff c+1": False,
    "noise halved": False,
    "counters not removed": False,
    "counters reset": False,
    "revise charged at epsilon": True,  # docs/proofs.md, "Theorem of kept results": twice that is not needed
    "revise not charged": False,
    "wrapper without the min": False,
    "target q too large": False,
    "PATE, the teachers' prior": False,
    "PATE, low for nothing": False,
    "pay for change, of the data": False,
    "sketch without phantoms": False,
    "sketch without a floor": False,
}


FOLDER = pathlib.Path(__file__).parent
TOPICS = {
    path.stem: importlib.import_module(f"tests.privacy.{path.stem}").SCENARIOS
    for path in sorted(FOLDER.glob("scenarios_*.py"))
}
SCENARIOS: list[Scenario] = [scenario for found in TOPICS.values() for scenario in found]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_claim_is_kept_or_seen_to_be_broken(scenario: Scenario) -> None:
    attained = scenario.attained_delta()
    if scenario.private:
        assert attained <= scenario.delta * (1 + _ROUNDING) + _CUTS * scenario.cut, scenario.source
    else:
        factor, difference = _CLEARLY
        assert attained > max(factor * scenario.delta, scenario.delta + difference), scenario.source


def test_names_are_different_and_claims_are_claims() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    for scenario in SCENARIOS:
        assert scenario.epsilon > 0, scenario.name
        assert 0 <= scenario.delta < 1, scenario.name
        assert _CUTS * scenario.cut <= _CLEARLY[1] / 10, f"{scenario.name}: a fault could hide in what is cut off"


@pytest.mark.parametrize(("start", "private"), DEMANDED.items())
def test_nothing_is_missing(start: str, private: bool) -> None:
    name = re.compile(rf"{re.escape(start)}\b")
    assert any(name.match(scenario.name) and scenario.private == private for scenario in SCENARIOS)


def test_every_topic_has_claims_of_both_kinds() -> None:
    for topic, found in TOPICS.items():
        assert {scenario.private for scenario in found} == {True, False}, topic
