"""The sampled audit of mode `looks`: the real code agrees with its law and overdraws no purse, and each planted
fault shows. Keys of the runs are fixed, so a test that passes keeps passing.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dp_transforms.audit import copies
from dp_transforms.audit.payments import PaymentAudit, audit_payments
from dp_transforms.audit.sampled_looks import LooksDesign, design_looks_sampling, sample_names, scene_of_design
from dp_transforms.audit.scenes import SceneWeights, empty_purse_trials, known_items, new_items, paced_weights
from dp_transforms.audit.statistics import FALSE_ALARM, SampledAudit
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor import item_namer, purses, replay_weights
from dp_transforms.monitor.item_namer import ItemNamer
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.pace import Chosen, Pace
from dp_transforms.monitor.purses import PurseEntries
from dp_transforms.runs.run_part import RunPart
from tests.helpers.audited_names import audited_plan, law_of, mechanism_and_claim, run_settings
from tests.helpers.small_runs import SECRET

RUNS = 2_000


@functools.cache
def _design(runs: int = RUNS, *, domain: tuple[str, ...] = ()) -> LooksDesign:
    mechanism, claim = mechanism_and_claim(audited_plan(domain=domain))
    return design_looks_sampling(mechanism, claim, law_of(mechanism), runs, 3)


def _sample(
    *, epsilon: float = 2.0, runs: int = RUNS, settings: NamingSettings | None = None, **options: Any
) -> SampledAudit:
    plan = audited_plan(**options)
    mechanism, claim = mechanism_and_claim(plan)
    design = _design(runs, domain=options.get("domain", ()))
    claim = dataclasses.replace(claim, epsilon=epsilon)
    return sample_names(mechanism, claim, settings or run_settings(plan), design, law_of(mechanism), SECRET)


def _pay() -> PaymentAudit:
    plan = audited_plan()
    return audit_payments(mechanism_and_claim(plan)[0], run_settings(plan), SECRET)


# ---------------------------------------------------------------------------------------------------------------------
# The real code as it is
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"forget_after": 0}, {"domain": ("a", "b")}])
def test_the_real_code_agrees_with_its_law(options: dict[str, Any]) -> None:
    audit = _sample(**options)
    assert audit.violations == ()
    assert audit.p_value > 0.001  # whatever the key, in all but one of a thousand
    assert audit.tests >= 20
    design = audit.design
    assert 0.2 < design.expected_epsilon < 2
    assert 0.4 * design.expected_epsilon < audit.epsilon < 2
    for seen, probability in ((audit.p_seen, design.p), (audit.q_seen, design.q)):
        assert abs(seen - RUNS * probability) < 5 * math.sqrt(RUNS * probability)


def test_the_real_code_overdraws_no_purse() -> None:
    """And some users spend nearly all of it."""
    audit = _pay()
    assert audit.violations == ()
    assert 0.99 < audit.replay_share <= 1
    assert 0.99 < audit.stream_share <= 1
    assert audit.users > 90


def test_more_runs_show_more() -> None:
    bounds = [_design(runs).expected_epsilon for runs in (500, RUNS, 50_000)]
    assert bounds == sorted(bounds)
    assert bounds[0] < 0.8 * bounds[-1]


def test_a_bound_above_the_claim_is_a_violation() -> None:
    """A claim that is far too small: no law is needed to see that, only counts."""
    (violation,) = _sample(epsilon=0.05).violations
    assert "attains epsilon" in violation
    assert "99.9 %" in violation


@pytest.mark.parametrize("runs", [1, 3, 20])
def test_a_handful_of_runs_raises_no_alarm(runs: int) -> None:
    audit = _sample(runs=runs)
    assert audit.violations == ()
    assert audit.epsilon == 0


def test_the_scenes_show_what_they_are_made_for() -> None:
    """Items that are known, held by x' alone and by nobody; all levels; and weights as the real rules choose them."""
    plan = audited_plan()
    mechanism, _ = mechanism_and_claim(plan)
    law = law_of(mechanism)
    levels, (replay, stream) = new_items(mechanism), known_items(mechanism, law, plan.forget_after, 3600)
    assert (replay.in_order, stream.in_order) == (False, True)
    for scene in (replay, stream):
        assert [cell.others > 0 for cell in scene.cells] == [True, False, True, False, False]
        assert all(cell.by_user for cell in scene.cells)
        assert scene.threshold - scene.known_threshold == plan.threshold - plan.known_threshold
        weights = SceneWeights.of_scene(scene, mechanism, 3600)
        crowd = weights.sum_of(scene.cells[0], with_user=False)
        assert law.tail(scene.threshold - crowd) > 0.999
    assert levels.spacing == plan.spacing
    sums = [SceneWeights.of_scene(levels, mechanism, 3600).sum_of(cell, with_user=False) for cell in levels.cells]
    margins = [levels.threshold + n * plan.spacing - total for n, total in enumerate(sums)]
    assert max(map(abs, margins)) <= mechanism.looks_list.weights[-1]
    worst = scene_of_design(_design(), mechanism)
    others = SceneWeights.of_scene(worst, mechanism, 3600).sum_of(worst.cells[0], with_user=False)
    assert worst.threshold - others == _design().margin


@pytest.mark.parametrize("slide_seconds", [3600, 86_400])
def test_the_pace_of_scenes_is_that_of_the_real_purses(slide_seconds: int) -> None:
    """Two implementations of section 8 of docs/purse.md."""
    settings = run_settings(audited_plan())
    mechanism, _ = mechanism_and_claim(audited_plan())
    looks = {1: 1, 2: 2, 5: 1}
    schedule = dataclasses.replace(settings.schedule, slide_seconds=slide_seconds, window_seconds=slide_seconds)
    horizon = schedule.horizon if slide_seconds == 3600 else 1
    if horizon == 1:
        looks = {0: 3}
    pace = Pace(dataclasses.replace(settings, schedule=schedule)) if horizon > 1 else None
    wanted = paced_weights(mechanism, looks, windows=horizon, slide_seconds=slide_seconds)
    if pace is None:
        assert wanted == {0: mechanism.looks_list.replay_weight(3)}
        return
    left, before = settings.purse, 0
    for window, number in looks.items():
        chosen = pace.choose(*(np.array([value]) for value in (number, left, before, min(looks))), window)
        assert chosen.weights.tolist() == [wanted[window]]
        left -= int(chosen.units[0]) * number
        before += number


# ---------------------------------------------------------------------------------------------------------------------
# Planted faults that purses show
# ---------------------------------------------------------------------------------------------------------------------

CHANGED, OVERDRAWN = "change with the events of others", "times what is in its purse"


def _found(audit: PaymentAudit, kind: str, fragment: str) -> None:
    (violation,) = audit.violations
    assert fragment in violation
    assert violation.startswith(f"in a {kind}, ")


def test_weights_that_a_replay_does_not_charge_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest weight for each of any number of pairs."""
    original = replay_weights.choose_replay
    monkeypatch.setattr(
        replay_weights,
        "choose_replay",
        lambda pairs, settings: original(pairs, settings)._replace(weights=np.full_like(pairs, settings.weights[-1])),
    )
    _found(_pay(), "replay", OVERDRAWN)


def test_weights_that_a_stream_does_not_charge_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purses.Purses, "_append", lambda self, entries: None)
    _found(_pay(), "stream", OVERDRAWN)


def _with_choice(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Chosen]) -> None:
    original = Pace.choose

    def choose(self: Pace, looks: Any, left: Any, *rest: Any) -> Chosen:
        return change(original(self, looks, np.maximum(left, 0), *rest), looks, left)

    monkeypatch.setattr(Pace, "choose", choose)


def test_looks_of_one_window_that_are_checked_one_by_one_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each can be paid from what is left, but not all of them."""
    _with_choice(
        monkeypatch, lambda chosen, looks, left: chosen._replace(payable=np.where(chosen.units <= left, looks, 0))
    )
    _found(_pay(), "stream", OVERDRAWN)


def test_a_purse_that_is_checked_after_its_looks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user goes on until nothing is left: its last look costs more than is there."""

    def change(chosen: Chosen, looks: Any, left: Any) -> Chosen:
        one_more = np.minimum(looks, -(-np.maximum(left, 0) // chosen.units))
        return chosen._replace(payable=one_more)

    _with_choice(monkeypatch, change)
    _found(_pay(), "stream", OVERDRAWN)


def test_the_price_of_a_smaller_weight_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(chosen: Chosen, looks: Any, left: Any) -> Chosen:
        units = np.array(audited_plan().units)
        less = units[np.maximum(np.searchsorted(units, chosen.units) - 1, 0)]
        return chosen._replace(units=less, payable=np.minimum(looks, left // less))

    _with_choice(monkeypatch, change)
    _found(_pay(), "stream", OVERDRAWN)


def test_pairs_that_are_not_dropped_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_weights, "keep_by_hash", lambda pairs, most, keys: np.ones(len(pairs), dtype=np.bool_))
    _found(_pay(), "replay", OVERDRAWN)


def test_weights_that_follow_others_in_a_stream_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One weight less where many users are active."""

    def change(chosen: Chosen, looks: Any, left: Any) -> Chosen:
        listed = np.array(audited_plan().weights)
        less = listed[np.maximum(np.searchsorted(listed, chosen.weights) - 1, 0)]
        return chosen._replace(weights=less if len(looks) > 60 else chosen.weights)

    _with_choice(monkeypatch, change)
    _found(_pay(), "stream", CHANGED)


def test_weights_that_follow_others_in_a_replay_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One weight less for items that many users hold."""
    original = ItemSums.of_weights.__func__  # type: ignore[attr-defined]

    def of_weights(cls: type[ItemSums], pairs: Any, weights: Any, keys: Any) -> ItemSums:
        listed = np.array([0, *audited_plan().weights])
        less = listed[np.maximum(np.searchsorted(listed, weights) - 1, 1)]
        popular = np.bincount(pairs.items)[pairs.items] > 60
        return original(cls, pairs, np.where(popular & (weights > 0), less, weights), keys)

    monkeypatch.setattr(ItemSums, "of_weights", classmethod(of_weights))
    _found(_pay(), "replay", CHANGED)


@pytest.mark.parametrize("name", ["purses", "purses_of_shard"])
def test_a_full_purse_after_a_hand_over_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay in parts and a stream read what users have left each in its own way."""
    monkeypatch.setattr(RunPart, name, lambda self, *asked: PurseEntries.none())
    _found(_pay(), "stream", OVERDRAWN)


def test_a_full_purse_where_a_worker_reads_its_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = purses.Purses.__init__
    monkeypatch.setattr(
        purses.Purses, "__init__", lambda self, settings, keys, cells=(): original(self, settings, keys)
    )
    _found(_pay(), "stream", OVERDRAWN)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [(lambda cells: [], OVERDRAWN), (lambda cells: [cell[:-8] for cell in cells], "is refused where it is read again")],
)
def test_purses_that_are_lost_or_damaged_on_their_way_are_found(
    damage: Callable[[list[bytes]], list[bytes]], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = copies.join_cells
    monkeypatch.setattr(copies, "join_cells", lambda kind, cells, **options: damage(original(kind, cells, **options)))
    _found(_pay(), "stream", sentence)


# ---------------------------------------------------------------------------------------------------------------------
# Planted faults that only what is published shows
# ---------------------------------------------------------------------------------------------------------------------


def _assert_found(audit: SampledAudit, test: str) -> None:
    assert audit.p_value < FALSE_ALARM
    assert any("does not publish what its exact law says" in text for text in audit.violations)
    assert test in audit.worst_test


def test_known_items_that_are_looked_at_only_while_held_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = item_namer.follow

    def follow(*args: Any, **functions: Any) -> Any:
        functions["nobody_passes"] = lambda windows, hashes: np.zeros(len(windows), dtype=np.bool_)
        return original(*args, **functions)

    monkeypatch.setattr(item_namer, "follow", follow)
    _assert_found(_sample(), "known items")


def test_items_of_a_domain_that_are_looked_at_only_while_held_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dp_transforms.monitor.empty_items.binomial_integers", lambda trials, tail: [])
    _assert_found(_sample(domain=("a", "b")), "without the user")


def test_items_of_users_with_empty_purses_that_are_drawn_for_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ItemSums.of_weights.__func__  # type: ignore[attr-defined]

    def of_weights(cls: type[ItemSums], pairs: Any, weights: Any, keys: StreamKeys) -> ItemSums:
        if weights.all():
            return original(cls, pairs, weights, keys)
        sums = original(cls, pairs, np.maximum(weights, 1), keys)
        smallest = audited_plan().weights[0]
        return dataclasses.replace(sums, sums=np.where(sums.sums < smallest, 0, sums.sums))

    monkeypatch.setattr(ItemSums, "of_weights", classmethod(of_weights))
    monkeypatch.setattr(
        ItemNamer,
        "name_windows",
        lambda self, sums, known, first, end: self._name_in_open_domain(sums, known, first, end),
    )
    _assert_found(_sample(), "empty purses")


def test_an_item_that_is_named_when_the_purse_is_empty_is_found() -> None:
    """In the window after the one for which the purse was spent, one item of one copy."""
    mechanism, _ = mechanism_and_claim(audited_plan())
    trials = {trial.scene.name: trial for trial in empty_purse_trials(mechanism, law_of(mechanism), RUNS)}
    trial = trials["empty purses in a stream"]
    levels = np.zeros((trial.copies, trial.scene.windows, trial.scene.items), dtype=np.int64)
    name = "empty purses in a stream, next window"
    assert dict(trial.p_values({True: levels}))[name] == 1
    levels[-1, 1, -1] = 1
    assert dict(trial.p_values({True: levels}))[name] == 0
    assert trials["empty purses in a replay"].scene.windows == 1


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_levels_that_are_too_close_are_found(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    named = ItemNamer._named

    def closer(self: ItemNamer, *columns: Any) -> NamedItems:
        before = self._settings
        self._settings = dataclasses.replace(before, spacing=math.ceil(share * before.spacing))
        try:
            return named(self, *columns)
        finally:
            self._settings = before

    monkeypatch.setattr(ItemNamer, "_named", closer)
    _assert_found(_sample(), "")


def test_other_boundaries_of_known_items_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The known threshold, the threshold, twice the threshold."""
    original = ItemNamer._named

    def named(self: ItemNamer, windows: Any, items: Any, noisy_sums: Any, thresholds: Any, table: Any) -> NamedItems:
        found = original(self, windows, items, noisy_sums, thresholds, table)
        of_known = 1 + (noisy_sums >= self._settings.threshold) + (noisy_sums >= 2 * self._settings.threshold)
        levels = np.where(thresholds < self._settings.threshold, of_known, found.levels)
        return dataclasses.replace(found, levels=levels)

    monkeypatch.setattr(ItemNamer, "_named", named)
    _assert_found(_sample(), "known items")


def test_half_the_noise_is_found() -> None:
    settings = run_settings(audited_plan())
    _assert_found(_sample(settings=dataclasses.replace(settings, noise=ExponentialPower(2.5, 100))), "")


@pytest.mark.parametrize("forget_after", [0, 2])
def test_items_that_are_known_for_too_short_or_too_long_are_found(
    forget_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = item_namer.follow

    def follow(cells: Any, known: Any, first: int, end: int, after: int, **functions: Any) -> Any:
        return original(cells, known, first, end, forget_after if after else 0, **functions)

    monkeypatch.setattr(item_namer, "follow", follow)
    _assert_found(_sample(), "known items")


def test_noise_that_repeats_from_window_to_window_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without window and holders in its key, an item has one noise for ever."""
    original = StreamKeys.look_uniforms

    def look_uniforms(self: StreamKeys) -> Any:
        draw = original(self)
        return lambda windows, hashes, digests: draw(np.zeros_like(windows), hashes, np.zeros_like(digests))

    monkeypatch.setattr(StreamKeys, "look_uniforms", look_uniforms)
    _assert_found(_sample(), "known items")


def test_known_items_that_are_lost_between_parts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunPart, "known", lambda self, *asked: KnownItems.none())
    _assert_found(_sample(), "known items in a stream")


@pytest.mark.parametrize("options", [{}, {"domain": ("a", "b")}])
def test_noise_that_does_not_follow_the_holders_is_found(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the holders in its key, a user that comes or goes leaves the noise as it was."""
    original = StreamKeys.look_uniforms

    def look_uniforms(self: StreamKeys) -> Any:
        draw = original(self)
        return lambda windows, hashes, digests: draw(windows, hashes, np.zeros_like(digests))

    monkeypatch.setattr(StreamKeys, "look_uniforms", look_uniforms)
    _assert_found(_sample(**options), "with other holders")


def test_sizes_that_are_not_those_of_levels_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the noisy sum itself: a noisy count, which nobody has paid for."""
    original = ItemNamer._named

    def named(self: ItemNamer, windows: Any, items: Any, noisy_sums: Any, *rest: Any) -> NamedItems:
        found = original(self, windows, items, noisy_sums, *rest)
        return dataclasses.replace(found, at_least_users=np.maximum(0, noisy_sums // self._settings.weights[-1]))

    monkeypatch.setattr(ItemNamer, "_named", named)
    (violation,) = _sample().violations
    assert "sizes that do not follow from levels" in violation
