"""The choice of a purse."""

import dataclasses
import functools

import pytest

from dp_transforms.accounting.calibration import sampling_delta
from dp_transforms.accounting.purse.open_threshold import found_from, smallest_open_threshold
from dp_transforms.accounting.purse.price_list import (
    order_budget,
)
from dp_transforms.accounting.purse.purse_choice import choose_purse
from tests.unit.purse_oracle import delta_of_budget

BUDGET = {"epsilon": 2.0, "delta": 1e-9}


@functools.cache
def chosen(**activity):
    return choose_purse(**BUDGET, **activity)


def test_the_default_finds_as_much_as_the_reference():
    """Shape 2.5 with a T for one activity alone has 22.7, 49.2 and 131.9 users; one T for all costs some percent."""
    choice = chosen()
    at_threshold = [choice.threshold / choice.prices.replay_weight(looks) for looks in (1, 10, 100)]
    assert at_threshold[0] < 27
    assert at_threshold[1] < 49.2 * 1.1
    assert at_threshold[2] < 131.9 * 1.1
    assert choice.prices.noise.shape in (2.25, 2.5, 2.75)


def test_shape_goes_with_activity():
    """Heavier tails for users who do little; the more looks, the lighter."""
    shapes = [chosen(usual_looks=usual).prices.noise.shape for usual in ((1, 2), (1, 100), (300, 3000))]
    assert shapes == sorted(shapes)
    assert shapes[0] <= 2 < shapes[1] < shapes[2]


def test_users_who_do_one_thing_are_found_nearly_as_soon_as_by_a_selection_of_partitions():
    """PipelineDP's best one at one pair for each user, truncated geometric, names an item from 13 users on."""
    choice = chosen(usual_looks=(1, 1), most_looks=1)
    assert found_from(choice.prices, choice.threshold, 1) <= 15


@pytest.mark.parametrize("usual", [(1, 2), (1, 100), (300, 3000)])
def test_no_other_shape_finds_more(usual):
    """By the certified prices and threshold, not by those of the search; 3 % for its coarse grid."""

    def users(choice):
        product = 1.0
        for looks in {usual[0], round((usual[0] * usual[1]) ** 0.5), usual[1]}:
            product *= found_from(choice.prices, choice.threshold, looks)
        return product ** (1 / 3 if usual != (1, 2) else 1 / 2)

    best = users(chosen(usual_looks=usual))
    for shape in (2.0, 3.5):
        assert best <= users(chosen(usual_looks=usual, shapes=(shape,))) * 1.03


def test_the_scale_grows_with_the_root_of_the_looks():
    """So that the smallest weight is not rounded down to little or nothing."""
    assert chosen(usual_looks=(1, 10), most_looks=40_000, shapes=(3.0,)).prices.noise.scale == 20_000


def test_what_is_chosen_adds_up_to_delta():
    choice = chosen()
    assert choice.delta_looks + choice.delta_open <= BUDGET["delta"] * (1 + 1e-12)
    assert delta_of_budget(choice.prices.order, choice.prices.budget, 2.0) <= choice.delta_looks * (1 + 1e-6)
    assert choice.threshold == smallest_open_threshold(choice.prices, choice.delta_open)
    variation = choice.prices.most_looks * choice.prices.noise.sampling_total_variation
    assert 0 < sampling_delta(2.0, variation, horizon=1, domain_size=0) < 1e-25


def test_levels_are_priced():
    """At 5.5 standard deviations they cost next to nothing, at 2 a visible part."""
    narrow = {"usual_looks": (5, 5), "most_looks": 5, "shapes": (2.5,)}
    plain, wide, close = (chosen(**narrow, level_spacing=spacing) for spacing in (0.0, 5.5, 2.0))
    assert wide.prices.spacing >= 5.5 * wide.prices.noise.standard_deviation
    assert plain.prices.weights[0] * 0.998 < wide.prices.weights[0] <= plain.prices.weights[0]
    assert close.prices.weights[0] < 0.97 * plain.prices.weights[0]


def test_a_choice_that_is_not_safe_cannot_be_built():
    choice = chosen()
    assert dataclasses.replace(choice) == choice
    assert dataclasses.replace(choice, threshold=choice.threshold + 1).threshold > choice.threshold
    for change, said in (
        ({"threshold": choice.threshold - 1}, f"threshold must be >= {choice.threshold}"),
        ({"delta_looks": choice.delta_looks * 0.99}, "budget must be at most"),
        ({"epsilon": 1.99}, "budget must be at most"),
        ({"delta_open": choice.delta_open * 0.99}, "threshold must be >="),
        ({"threshold": 0}, "threshold must be a whole number"),
    ):
        with pytest.raises(ValueError, match=said):
            dataclasses.replace(choice, **change)
    other_order = dataclasses.replace(
        choice.prices, budget=order_budget(choice.prices.order + 1, 2.0, choice.delta_looks)
    )
    with pytest.raises(ValueError, match="budget must be at most"):
        dataclasses.replace(choice, prices=other_order)


def test_known_items_need_no_share_of_delta():
    choice = chosen()
    known = dataclasses.replace(choice, delta_open=0.0, threshold=1)
    assert known.threshold == 1
