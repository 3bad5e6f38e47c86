"""The choice of a price list: what is chosen adds up to delta, and finds most."""

import functools
import types
from statistics import geometric_mean

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
    for tests, users in ((1, 27), (10, 49.2 * 1.1), (100, 131.9 * 1.1)):
        assert choice.threshold / choice.prices.replay_weight(tests) < users
    assert choice.prices.noise.shape in (2.25, 2.5, 2.75)


def test_the_order_of_a_large_budget_is_small():
    """The conversion takes about ``ln(1 / delta) / (order - 1)`` of it, and it is large."""
    assert 1.4 < choose_tests(40.0, 1e-3, usual_tests=(1, 1000), most_tests=3000).order < 1.5


@pytest.mark.parametrize("usual", [(1, 2), (1, 100), (300, 3000)])
def test_no_other_shape_finds_more(usual, monkeypatch):
    """By the certified prices and threshold, not by those of the search; 3 % for its coarse grid."""

    def users(choice):
        tests = {usual[0], round((usual[0] * usual[1]) ** 0.5), usual[1]}
        return geometric_mean([found_from(choice.prices, choice.threshold, number) for number in tests])

    best = users(chosen(usual_tests=usual))
    for shape in (2.0, 3.5):
        assert best <= users(chosen_of_shape(shape, monkeypatch, usual_tests=usual)) * 1.03
