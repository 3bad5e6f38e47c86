"""Contributions in rounds over blocks: each condition of the theorem (docs/guarantee.md, "Rounds").

What users pay in them is in test_payments.py; that all ways to run it publish what the slow reference says is in
tests/conformance.
"""

import contextlib
import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest

from dp_transforms.core import item_namer
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_namer import ItemNamer
from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.named_items import levels_and_sizes
from dp_transforms.core.steps import NameRound, WeighRound
from dp_transforms.core.user_budgets import BudgetEntries
from dp_transforms.plan.records import MOST_ROUNDS, Rounds
from dp_transforms.plan.rounds import RoundTerms, terms_of_round
from dp_transforms.reports.report_records import checked_report
from tests.helpers.modes import units_of_shares
from tests.helpers.rounds_runs import (
    WINDOWS,
    Run,
    at,
    busy_log,
    by_cell,
    cells_of,
    contributions_of,
    left_out_of,
    named_in_blocks,
    span,
    trial_with_rounds,
)
from tests.helpers.small_runs import SECRET
from tests.reference.contributions import reports_of
from tests.reference.rounds import RoundsOracle

PUBLIC = ("topic-0", "topic-3", "odd-2", "odd-3", "nobody's", "nobody else's")


@pytest.mark.parametrize(
    ("seed", "block_seconds", "choices", "public"),
    [
        (1, 40, {}, ()),
        (6, 35, {"shapes": (3.5, 2.0, 1.5)}, PUBLIC),
        (7, 30, {"shapes": (2.0, 4.0, 3.0), "sliding": 3}, ()),
        (1, 40, {"percents": (90, 5, 5)}, ()),  # most for round 0
    ],
)
def test_the_steps_name_what_the_reference_says_however_items_are_cut(seed, block_seconds, choices, public):
    choices = {"threshold": 25, "false_names": 40, "public": len(public), **choices}
    trial, log = trial_with_rounds(block_seconds, **choices), busy_log(seed)
    oracle = RoundsOracle(log, trial, trial.stream_keys(SECRET), public)
    expected = oracle.names()
    assert len(expected) > 10
    assert any(entry.nobody for entry in expected), "contributions that nobody makes are drawn for"
    assert oracle.drawn[0] > oracle.drawn[1] > oracle.drawn[-1] > 0 or "percents" in choices
    assert oracle.left_out
    of_blocks = reports_of(oracle.blocks, trial)
    assert [checked_report(report) for report in of_blocks] == of_blocks
    for shards in (1, 3):
        run = Run(log, trial, shards, public=public)
        assert run.reports() == reports_of(expected, trial)
        assert set(cells_of(run.rounds[0].found)) - oracle.public_in_blocks == {entry[:2] for entry in oracle.blocks}
        assert public or run.block_reports() == of_blocks
        assert [of_round.drawn for of_round in run.rounds[1:]] == oracle.drawn


def test_the_level_of_a_block_is_at_least_1_whatever_shares_are_declared():
    """Also where round 0 has larger weights than all later ones, so that its first boundaries count for less."""
    larger = 0
    for later in range(1, MOST_ROUNDS):
        for shares in itertools.product((2, 34, 99), repeat=later):  # of what is left
            rounds = Rounds(block_seconds=40, units=units_of_shares(*shares, 100), false_names=0.5)
            trial = dataclasses.replace(trial_with_rounds(), rounds=rounds)
            terms = terms_of_round(trial, 0, 0, WINDOWS)
            noisy_sums = np.arange(terms.threshold, 20 * terms.threshold)
            levels, _ = levels_and_sizes(noisy_sums, terms.threshold, trial, terms)
            assert levels[0] >= 1
            assert (np.diff(levels) >= 0).all()
            lower = terms._replace(raised=2 * trial.prices_of_rounds[-1].spacing)
            counted, _ = levels_and_sizes(noisy_sums, terms.threshold, trial, lower)
            assert (counted - levels)[levels > 1].tolist() == [2] * (levels > 1).sum(), (
                "from the threshold if not raised"
            )
            larger += terms.largest_weight > max(trial.largest_in_rounds[1:])
    assert larger > 10


def test_a_round_that_is_not_told_what_is_named_is_refused():
    """It would spend the budget of its round on blocks."""
    trial = trial_with_rounds()
    for step, nothing in ((WeighRound, Contributions.none()), (NameRound, ItemSums.none())):
        first, last = (step(trial, trial.stream_keys(SECRET), None, number) for number in (0, 3))
        assert len(first.process(first.restore([], 0), nothing, span(), Counter())) == 0
        with pytest.raises(ValueError, match="round 3 must be told"):
            last.process(last.restore([], 0), nothing, span(), Counter())


def test_a_contribution_is_drawn_for_in_each_round_whether_anybody_makes_it_or_not():
    """As often as the threshold says, anew in each round; and what becomes of others does not follow who holds one."""
    trial = trial_with_rounds(false_names=1e6)  # then one of a hundred is named by noise alone
    in_block = named_in_blocks(trial, [str(number) for number in range(2000)])
    run, held = (Run(log, trial, told_blocks=in_block) for log in ([], [("somebody", "7", at(3))]))
    assert len(run.rounds) == 4
    for of_round in run.rounds[1:]:
        assert len(of_round.found.without_left_out()) == pytest.approx(of_round.drawn / 100, rel=0.4)
    assert run.rounds[1].drawn == 2000 * 4
    left_out = len(left_out_of(run.rounds[2].found)[0])
    assert run.rounds[3].drawn == run.rounds[2].drawn - left_out - len(run.rounds[2].found.without_left_out())
    noise = trial.contributions.noise
    share = 1 - noise.upper_tail(noise.smallest_margin(0.01) - trial.contributions.spacing)
    assert left_out == pytest.approx(run.rounds[2].drawn * share, rel=0.1)
    assert by_cell(held.rounds[1].sums).keys() <= set(cells_of(in_block, windows=range(4)))
    for number in (1, 2):
        others, with_somebody = (set(cells_of(of.rounds[number].found)) for of in (run, held))
        assert len(others ^ with_somebody) <= 1


def test_a_sizing_test_is_drawn_for_whether_anybody_adds_to_the_item_or_not(monkeypatch):
    """And what becomes of others does not follow who holds one. A size is stated from a noisy sum of 1 on."""
    monkeypatch.setattr(item_namer, "terms_of_sizing", lambda *_: RoundTerms(1, -9, 1, 25))
    trial = trial_with_rounds()
    named = named_in_blocks(trial, [str(number) for number in range(2000)])
    lone = ItemSums(*np.array([[0], [7], [4000]]), np.array([[1, 2]], dtype=np.uint64), named.table).select(slice(None))
    namer, drawn = ItemNamer(trial, trial.stream_keys(SECRET), 3), np.full(2000, 2000)
    (sized, none), (with_lone, _) = (namer.size(named, sums, drawn, WINDOWS) for sums in (ItemSums.none(), lone))
    assert len(none) == 0
    assert (sized.at_least_users > 0).sum() == pytest.approx(1000, rel=0.15)
    assert np.flatnonzero(sized.at_least_users != with_lone.at_least_users).tolist() == [7]


def test_a_sum_of_what_is_not_drawn_for_is_refused():
    """Else a lone holder would be tested at a low threshold."""
    trial = trial_with_rounds()
    keys = trial.stream_keys(SECRET)
    name, weigh = NameRound(trial, keys, None, 1), WeighRound(trial, keys, None)
    log = [("somebody", item, at(window)) for window in range(8) for item in "abc"]
    sums = weigh.process(weigh.restore([], 0), contributions_of(log, trial), span(), Counter())
    assert sums.windows.max() == 4  # the second block, named by its first window
    sums = dataclasses.replace(sums, windows=sums.windows // 4)  # all of the first block
    by_label = {item: sums.select(sums.items == place) for place, item in enumerate(sums.table.labels.to_pylist())}
    for labels, added, is_drawn in (
        ("abc", sums, True),
        ("abd", sums, False),
        ("", sums, False),
        *(("ab", by_label["c"].select(by_label["c"].windows == window), False) for window in (0, 1)),
    ):
        earlier = [named_in_blocks(trial, list(labels)).to_bytes()], []
        if is_drawn:
            name.process(None, added, span(), Counter(), *earlier)
            continue
        with pytest.raises(ValueError, match="a sum of what is no candidate"):
            name.process(None, added, span(), Counter(), *earlier)


def test_a_budget_with_more_than_that_of_its_round_is_refused():
    trial = trial_with_rounds()
    one, none = np.array([1], dtype=np.uint32), np.array([0], dtype=np.uint32)
    entries = BudgetEntries(one.astype(np.uint64), np.array([trial.rounds.units[2]]), one, none)
    for number, is_sound in enumerate((True, False, True, True)):
        weigh = WeighRound(trial, trial.stream_keys(SECRET), None, number)
        with contextlib.nullcontext() if is_sound else pytest.raises(ValueError, match="damaged"):
            weigh.restore([entries], 4)
