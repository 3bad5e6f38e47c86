"""Looks in rounds over blocks: each condition of the theorem (docs/guarantee.md, "Rounds").

That all ways to run it publish what the slow reference says is in tests/conformance.
"""

import dataclasses
import itertools
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

from dp_transforms import WindowSchedule
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_namer import ItemNamer
from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.named_items import NamedItems, levels_and_sizes
from dp_transforms.core.operator_counts import CONTRIBUTIONS_UNPAID
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.core.planned_run import RunPart
from dp_transforms.core.stage import Span
from dp_transforms.core.state_chunks import Kind, join_chunks, pack_by_bucket, unpack_chunk
from dp_transforms.core.steps import NameRound, WeighRound
from dp_transforms.core.user_budgets import BudgetEntries
from dp_transforms.plan.records import MOST_ROUNDS, Rounds
from dp_transforms.plan.rounds import RoundTerms
from dp_transforms.reports.report_records import checked_report
from dp_transforms.runs.state_file import StateFile, StateHeader, StoredPart, write_state
from tests.helpers.core_runs import START
from tests.helpers.modes import units_of_shares
from tests.helpers.rounds_runs import (
    WINDOWS,
    at,
    busy_log,
    calibrated,
    cells_of,
    left_out_of,
    named_in_blocks,
    trial_with_rounds,
)
from tests.helpers.small_runs import SECRET, batch_of
from tests.helpers.trial_plan import TrialPlan
from tests.reference.contributions import reports_of
from tests.reference.rounds import RoundsOracle


@pytest.mark.parametrize(("seed", "block_seconds", "sliding"), [(1, 40, 1), (6, 35, 1), (3, 120, 1), (7, 30, 3)])
def test_the_stages_name_what_the_reference_says_however_items_are_cut(seed, block_seconds, sliding):
    trial, log = trial_with_rounds(block_seconds, sliding=sliding, threshold=25, false_names=40), busy_log(seed)
    oracle = RoundsOracle(log, trial, trial.stream_keys(SECRET))
    expected = oracle.names()
    assert len(expected) > 20
    of_blocks = reports_of(oracle.blocks, trial)
    assert any(entry.nobody for entry in expected), "pairs that nobody holds are drawn for"
    assert oracle.drawn[0] > oracle.drawn[1] > oracle.drawn[2] > 0
    assert oracle.shown_more or sliding > 1
    assert oracle.left_out
    for shards in (1, 3):
        run = Run(log, trial, shards)
        found = [report for _, report in run.rounds[-1].named.window_reports(trial, "events")]
        assert found == reports_of(expected, trial)
        assert [report for _, report in run.rounds[0].found.window_reports(trial, "events")] == of_blocks
        assert [of_round.drawn for of_round in run.rounds[1:]] == oracle.drawn


def shapes_of_shares():
    """Of all numbers of rounds, with a small, a middling and a large share of what is left in each."""
    for later in range(1, MOST_ROUNDS):
        yield from itertools.product((2, 10, 34, 60, 99), repeat=later)


def test_the_level_of_a_block_is_at_least_1_whatever_shares_are_declared():
    """Also where round 0 has larger weights than all later ones, so that its first boundaries count for less."""
    larger = 0
    for shares in shapes_of_shares():
        rounds = Rounds(block_seconds=40, units=units_of_shares(*shares, 100), false_names=0.5)
        trial = dataclasses.replace(trial_with_rounds(), rounds=rounds)
        terms = trial.terms_of_round(0, 0, WINDOWS)
        noisy_sums = np.arange(terms.threshold, 20 * terms.threshold)
        levels, _ = levels_and_sizes(noisy_sums, terms.threshold, trial, terms)
        assert levels[0] >= 1
        assert (np.diff(levels) >= 0).all()
        larger += terms.largest_weight > max(trial.largest_in_rounds[1:])
    assert larger > 50


@pytest.mark.parametrize("percents", [(60, 40), (34, 33, 33), (90, 5, 5), (70, 10, 10, 10)])
def test_blocks_are_named_where_round_0_has_most_of_a_purse(percents):
    trial, log = trial_with_rounds(percents=percents, threshold=25, false_names=40), busy_log(1)
    oracle = RoundsOracle(log, trial, trial.stream_keys(SECRET))
    expected = oracle.names()
    run = Run(log, trial)
    assert [report for _, report in run.rounds[-1].named.window_reports(trial, "events")] == reports_of(expected, trial)
    found = [report for _, report in run.rounds[0].found.window_reports(trial, "events")]
    assert found == reports_of(oracle.blocks, trial)
    assert 1 in {hit.level for report in found for hit in report.heavy_hitters}
    assert [checked_report(report) for report in found] == found


@pytest.mark.parametrize("seed", range(2))
def test_a_user_never_pays_more_than_a_purse_and_its_weights_are_its_own(seed):
    """What a user adds is a function of its own pairs and of what was named; what its purse does not pay for does not
    count."""
    trial, log = trial_with_rounds(), busy_log(seed)
    run, price = Run(log, trial), dict(zip(trial.contributions.weights, trial.contributions.units, strict=True))
    assert run.unpaid > 0
    for user in ["busy", *(f"user-{number}" for number in range(0, 40, 8))]:
        alone = Run([event for event in log if event[0] == user], trial, told=run)
        others = Run([event for event in log if event[0] != user], trial, told=run)
        spent = [sum(price[weight] for weight in by_cell(of_round.sums).values()) for of_round in alone.rounds]
        assert all(paid <= units for paid, units in zip(spent, trial.rounds.units, strict=True))
        assert 0 < spent[0] <= sum(spent) <= BUDGET_UNITS
        for together, own, of_others in zip(run.rounds, alone.rounds, others.rounds, strict=True):
            assert by_cell(together.sums) == Counter(by_cell(own.sums)) + Counter(by_cell(of_others.sums))


def test_a_round_that_is_not_told_what_is_named_is_refused():
    """It would spend the purse of its round on blocks."""
    trial = trial_with_rounds()
    for step, nothing in ((WeighRound, Contributions.none()), (NameRound, ItemSums.none())):
        first, last = (step(trial, trial.stream_keys(SECRET), None, number) for number in (0, 3))
        assert len(first.process(first.restore([], 0), nothing, span(), Counter())) == 0
        with pytest.raises(ValueError, match="round 3 must be told"):
            last.process(last.restore([], 0), nothing, span(), Counter())


def test_each_round_has_noise_of_its_own():
    """Also with the same holders and weights, and where the number of a block is that of a window."""
    keys = trial_with_rounds().stream_keys(SECRET)
    cells = np.array([3]), np.array([[5, 6]], dtype=np.uint64), np.array([[7, 8]], dtype=np.uint64)
    drawn = [keys.block_uniforms(), *(keys.round_uniforms(number) for number in range(4)), keys.window_uniforms()]
    assert len({uniforms(*cells).tobytes() for uniforms in drawn}) == len(drawn)


def test_a_pair_is_drawn_for_in_each_round_whether_anybody_adds_to_it_or_not():
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _AnySize(TrialPlan):
    """A size is stated from a noisy sum of 1 on."""

    def terms_of_sizing(self, drawn, windows):
        return RoundTerms(1, -9, 1)


def test_a_second_look_is_drawn_for_whether_anybody_adds_to_the_pair_or_not():
    """And what becomes of others does not follow who holds one."""
    plain = trial_with_rounds()
    trial = _AnySize(**{field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)})
    named = named_in_blocks(trial, [str(number) for number in range(2000)])
    lone = ItemSums(*np.array([[0], [7], [4000]]), np.array([[1, 2]], dtype=np.uint64), named.table).select(slice(None))
    second, drawn = ItemNamer(trial, trial.stream_keys(SECRET)), np.full(2000, 2000)
    (sized, none), (with_lone, _) = (second.size(named, sums, drawn, WINDOWS) for sums in (ItemSums.none(), lone))
    assert len(none) == 0
    assert (sized.at_least_users > 0).sum() == pytest.approx(1000, rel=0.15)
    assert np.flatnonzero(sized.at_least_users != with_lone.at_least_users).tolist() == [7]


def test_thresholds_follow_how_many_pairs_are_drawn_for_in_all_shards_and_not_who_holds_them():
    plan = calibrated()
    horizon = plan.schedule.horizon
    thresholds = [plan.terms_of_round(1, drawn, horizon).threshold for drawn in (0, 10, 75, 76, 1000)]
    assert thresholds[0] == thresholds[2] < thresholds[3] < thresholds[4]
    trial = trial_with_rounds(false_names=2)
    in_block = named_in_blocks(trial, [str(number) for number in range(2000)])
    crowd = [(f"user-{number}", str(item), at(item % 4)) for number in range(9) for item in range(0, 400, 10)]
    for log in ([], crowd):
        whole, cut = (Run(log, trial, shards, told_blocks=in_block).rounds[1] for shards in (1, 4))
        assert whole.drawn == cut.drawn == 8000
        assert set(cells_of(whole.found)) == set(cells_of(cut.found))
        sums = by_cell(whole.sums)
        assert sum(cell not in sums for cell in cells_of(whole.found)) <= 8  # at most 2 are expected


def test_a_sum_of_a_pair_that_is_not_drawn_for_is_refused():
    """Else a lone holder would be tested at a low threshold."""
    trial = trial_with_rounds()
    keys = trial.stream_keys(SECRET)
    name, weigh = NameRound(trial, keys, None, 1), WeighRound(trial, keys, None)
    log = [("somebody", item, at(window)) for window in range(8) for item in "abc"]
    sums = weigh.process(weigh.restore([], 0), pairs_of(log, trial), span(), Counter())
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


@pytest.mark.parametrize("ends", [(4,), (3, 5, 10)])
def test_all_parts_together_spend_one_purse_of_each_round(tmp_path, ends):
    """At the pace of the user, and all of it in the end."""
    trial = trial_with_rounds(4 * 86_400)
    days = WindowSchedule.fixed(START, START + WINDOWS * 86_400, 86_400)
    trial = dataclasses.replace(trial, schedule=days)
    log = [("user", item, (START + day * 86_400) * 1_000_000) for item in "abc" for day in range(WINDOWS)]
    price = dict(zip(trial.contributions.weights, trial.contributions.units, strict=True))
    spent, stored, first = [], [], 0
    for end in (*ends, WINDOWS):
        in_blocks = Run(log, trial, part=RunPart(first, end)).rounds[0].sums
        ones = np.ones(len(in_blocks), dtype=np.int64)
        named = NamedItems(in_blocks.windows, in_blocks.items, ones, ones, in_blocks.table)  # as if all had been named
        run = Run(log, trial, part=state_of(tmp_path / str(first), stored, first, end), told_blocks=named)
        spent.append([sum(price[weight] for weight in of_round.sums.sums.tolist()) for of_round in run.rounds])
        stored += run.stored
        first = end
    assert min(spent[0][3], spent[1][3]) > 0
    for units, of_parts in zip(trial.rounds.units, zip(*spent, strict=True), strict=True):
        assert 0.7 * units < sum(of_parts) <= units


def test_a_purse_with_more_than_that_of_its_round_is_refused(tmp_path):
    trial = trial_with_rounds()
    one, none = np.array([1], dtype=np.uint32), np.array([0], dtype=np.uint32)
    entries = BudgetEntries(one.astype(np.uint64), np.array([trial.rounds.units[2]]), one, none)
    for number, is_sound in enumerate((True, False, True, True)):
        part = state_of(tmp_path / str(number), [(Kind.budgets_of_round(number), entries.to_bytes())], 4, WINDOWS)
        weigh = WeighRound(trial, trial.stream_keys(SECRET), None, number)
        entries_of_part = part.entries(Kind.budgets_of_round(number))
        if is_sound:
            weigh.restore(entries_of_part, 4)
            continue
        with pytest.raises(ValueError, match="damaged"):
            weigh.restore(entries_of_part, 4)


def pairs_of(log, trial, part=None):
    if not log:
        return Contributions.none()
    keys, batch, part = trial.stream_keys(SECRET), batch_of(list(log)), part or RunPart.whole(trial.schedule)
    cut = {"windows_per_range": WINDOWS, "shards": 1, "first_open": np.full(len(batch), part.first), "end": part.end}
    return Contributions.merge([pairs for *_, pairs in contributions_of_events(batch, trial.schedule, keys, **cut)])


def span(shard=0, shards=1, *, windows=range(WINDOWS)):
    return Span(windows.start, windows.stop, shard, shards)


def by_cell(sums):
    return dict(zip(cells_of(sums), sums.sums.tolist(), strict=True))


def state_of(path, cells, first, end):
    """A part of a run, before which this was stored."""
    by_place = {}
    for kind, bucket, cell in map(unpack_chunk, pack_by_bucket(cells)):
        by_place.setdefault((kind, bucket), []).append(cell)
    joined = [(*place, cell) for place, found in sorted(by_place.items()) for cell in join_chunks(place[0], found)]
    write_state(str(path), StateHeader("run", first), joined, bytes(32))
    return StoredPart(first, end, state_path=str(path), state_fingerprint=StateFile(str(path)).fingerprint)


class OfRound(NamedTuple):
    """sums: of all shards. drawn: for how many pairs. found: named in this round. named: in windows up to it."""

    sums: ItemSums
    drawn: int
    found: NamedItems
    named: NamedItems


class Run:
    """The stages of all rounds, in this process. told: the names are those of this run, whatever is added here.
    told_blocks: what round 0 named. part: of the run. stored: what each round hands over."""

    def __init__(self, log, trial, shards=1, *, told=None, told_blocks=None, part=None):
        self.rounds = []
        self.stored = []
        part = part or RunPart.whole(trial.schedule)
        self.trial, self.part = trial, part
        windows = range(part.first, part.end)
        keys, pairs, counts = trial.stream_keys(SECRET), pairs_of(log, trial, part), Counter[str]()
        for number in range(len(trial.rounds.units)):
            weigh, name = WeighRound(trial, keys, None, number), NameRound(trial, keys, None, number)
            before, blobs = NamedItems.none(), []
            if number:
                names = (self if told is None else told).rounds
                before = names[number - 1].named if number > 1 else before
                in_blocks = names[0].found if told_blocks is None else told_blocks
                blobs = [[in_blocks.to_bytes()], [before.to_bytes()]]
            here = span(windows=windows)
            state = weigh.restore(part.entries(weigh.state_kind), part.first)
            sums = weigh.process(state, pairs, here, counts, *blobs)
            self.stored += weigh.delta(state)
            drawn = weigh.earlier(here, *blobs).candidates.drawn if number else 0
            if told is not None:
                self.rounds.append(OfRound(sums, drawn, *told.rounds[number][2:]))
                continue
            parts = []
            for shard in range(shards):
                of_shard, added = span(shard, shards, windows=windows), sums.of_shard(shard, shards)
                parts.append(name.process(None, added, of_shard, counts, *blobs))
            named = NamedItems.merge(parts)
            already = set(cells_of(before))
            found = named.select(np.array([cell not in already for cell in cells_of(named)], dtype=np.bool_))
            self.rounds.append(OfRound(sums, drawn, found, named))
        self.unpaid = counts[CONTRIBUTIONS_UNPAID]
