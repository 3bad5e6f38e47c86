"""The choice of a price list: what is chosen adds up to delta, and finds most."""

import functools
import types

import pytest

from dp_transforms.accounting import paid_tests
from dp_transforms.accounting.paid_tests import choose_tests, price_lists
from dp_transforms.accounting.price_list import found_from, smallest_open_threshold

BUDGET = {"epsilon": 2.0, "delta": 1e-9}


@functools.cache
def chosen(usual_tests=(1, 1000), most_tests=3000, level_spacing=5.5):
    found = choose_tests(**BUDGET, usual_tests=usual_tests, most_tests=most_tests)
    (prices,) = price_lists(found, most_tests, level_spacing=level_spacing, amounts=[(found.shape, None)]).values()
    threshold = smallest_open_threshold(prices, found.delta_open)
    return types.SimpleNamespace(**found._asdict(), prices=prices, threshold=threshold)


def chosen_of_shape(shape, monkeypatch, **activity):
    with monkeypatch.context() as patched:
        patched.setattr(paid_tests, "SHAPES", (shape,))
        return chosen.__wrapped__(**activity)


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
    shapes = [chosen(usual_tests=usual).prices.noise.shape for usual in ((1, 2), (1, 100), (300, 3000))]
    assert shapes == sorted(shapes)
    assert shapes[0] <= 2 < shapes[1] < shapes[2]


@pytest.mark.parametrize("usual", [(1, 2), (1, 100), (300, 3000)])
def test_no_other_shape_finds_more(usual, monkeypatch):
    """By the certified prices and threshold, not by those of the search; 3 % for its coarse grid."""

    def users(choice):
        product = 1.0
        for looks in {usual[0], round((usual[0] * usual[1]) ** 0.5), usual[1]}:
            product *= found_from(choice.prices, choice.threshold, looks)
        return product ** (1 / 3 if usual != (1, 2) else 1 / 2)

    best = users(chosen(usual_tests=usual))
    for shape in (2.0, 3.5):
        assert best <= users(chosen_of_shape(shape, monkeypatch, usual_tests=usual)) * 1.03


def test_levels_are_priced(monkeypatch):
    """At 5.5 standard deviations they cost next to nothing, at 2 a visible part."""
    plain, wide, close = (
        chosen_of_shape(2.5, monkeypatch, usual_tests=(5, 5), most_tests=5, level_spacing=spacing)
        for spacing in (29.0, 5.5, 2.0)
    )
    assert wide.prices.spacing >= 5.5 * wide.prices.noise.standard_deviation
    assert plain.prices.weights[0] * 0.998 < wide.prices.weights[0] <= plain.prices.weights[0]
    assert close.prices.weights[0] < 0.97 * plain.prices.weights[0]
