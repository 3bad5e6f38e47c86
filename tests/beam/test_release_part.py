"""A range that is taken in parts publishes what the one run publishes, in every mode, however it is cut and sharded."""

from __future__ import annotations

import itertools

import pytest

from dp_transforms.beam.count_for_operator import EVENTS_OUTSIDE_RANGE, PAIRS_UNPAID, operator_counts
from dp_transforms.item_domain import ItemDomain
from dp_transforms.run_state.state_file import StateFile
from tests.helpers.naming_oracle import oracle_names, reports_of
from tests.helpers.names_plans import small_names_plan
from tests.helpers.oracle import oracle_transcript
from tests.helpers.pace_oracle import stream_weights
from tests.helpers.parts import Parts
from tests.helpers.small_runs import SECRET, ordered_log, random_log, settings_of, small_plan

DOMAIN = (*(f"item-{number}" for number in range(0, 12, 2)), *(f"nobody's-{number}" for number in range(30)))
HALF_DAY = 12 * 3600


def cuts_of(horizon):
    """Ends of parts: one part, two, five, and one for each window; each with another number of shards."""
    fifths = sorted({max(1, horizon * part // 5) for part in range(1, 6)})
    return {
        "one": ([horizon], 1),
        "two": ([horizon // 3, horizon], 3),
        "five": (fifths, 8),
        "each": (list(range(1, horizon + 1)), 2),
    }


def expected_names(log, plan, domain=()):
    settings = settings_of(plan)
    keys = settings.stream_keys(SECRET)
    log = [event for event in log if not domain or event[1] in domain]
    named = oracle_names(stream_weights(log, settings, keys), settings, keys, domain)
    return reports_of(named, settings), named


@pytest.mark.parametrize("cut", ["one", "two", "five", "each"])
@pytest.mark.parametrize("sliding", [1, 3])
def test_names_are_those_of_the_rule_of_a_stream(tmp_path, sliding, cut):
    plan = small_names_plan(12, sliding=sliding, window_seconds=HALF_DAY * sliding, forget_after=4, most_looks=16)
    log = ordered_log(plan, 6)
    ends, shards = cuts_of(plan.schedule.horizon)[cut]
    parts = Parts(tmp_path / "run", plan)
    for end in ends:
        parts.take(end, log, shards=shards)
    expected, named = expected_names(log, plan)
    assert parts.reports == expected
    assert sum(entry.was_known and not entry.nobody for entry in named) > 5
