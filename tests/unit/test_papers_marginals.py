"""Marginals: every answer against counting records one by one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dp_transforms.mechanisms.papers.query import Marginals


@pytest.mark.parametrize(("order", "exactly"), [(0, False), (1, False), (2, True), (3, False), (4, False)])
def test_marginals_are_what_counting_records_gives(order: int, exactly: bool) -> None:
    records = np.random.default_rng(1).random((50, 4)) < [0.9, 0.5, 0.3, 0.7]
    marginals = Marginals(("a", "b", "c", "d"), order, exactly=exactly)
    expected = {
        " & ".join("abcd"[attribute] for attribute in subset) or "all": int(records[:, list(subset)].all(axis=1).sum())
        for size in ([order] if exactly else range(order + 1))
        for subset in itertools.combinations(range(4), size)
    }
    histogram = marginals.histogram(records)
    assert histogram.sum() == 50
    assert dict(zip([name for name, _ in marginals], marginals.answers(histogram).tolist(), strict=True)) == expected
    assert {name: query.answer(histogram) for name, query in marginals} == expected
    assert len(marginals) == len(expected)


def test_all_marginals_of_d_attributes_are_2_to_the_d() -> None:
    assert len(Marginals([f"attribute {i}" for i in range(10)], 10)) == 1024
    assert len(Marginals([f"attribute {i}" for i in range(10)], 3)) == 1 + 10 + 45 + 120


@pytest.mark.parametrize(
    ("attributes", "order"),
    [((), 0), (("a", "a"), 1), (("a", "b"), 3), (("a", "b"), -1), (("a", "b"), True), (("a", "b"), 1.0)],
)
def test_hostile_marginals_are_refused(attributes: tuple[str, ...], order: int) -> None:
    with pytest.raises(ValueError, match=r"attributes|order"):
        Marginals(attributes, order)


@pytest.mark.parametrize("records", [[[1, 2]], [[1, 0, 1]], [1, 0], [[0.5, 1]]])
def test_hostile_records_are_refused(records: Any) -> None:
    with pytest.raises(ValueError, match="zeros and ones"):
        Marginals(("a", "b"), 1).histogram(records)
