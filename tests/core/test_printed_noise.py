"""The two noises of mode kms21 as they are drawn for a query. Each test rejects a correct draw with probability
1e-6 over the key (fixed here), and has a twin that it must reject."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from dp_transforms.core.hit_noise import CappedSumNoise
from dp_transforms.core.randomness import BlockFunction, StreamKeys
from tests.helpers.sampling_checks import SECRET, chi_squared_rejects, laplace_probability, laplace_tail, numbered

DRAWS = 200_000
WIDE, NARROW, CAP = 0.2, 0.4, 2


class OneForBoth(StreamKeys):
    """A planted fault: both noises from the same uniforms."""

    def noise_pair_uniforms(self, window: int, number: int) -> BlockFunction:
        return super().noise_pair_uniforms(window, number % 3)


def draws(
    kind: type[StreamKeys] = StreamKeys, *, window: int = 0, cap: int = CAP, tag: int = 1
) -> npt.NDArray[np.int64]:
    keys = kind(SECRET, run_id="run", plan_fingerprint="plan", stream="stream", threshold=40)
    noise = CappedSumNoise(40, keys, wide_epsilon=WIDE, narrow_epsilon=NARROW, cap=cap)
    return noise.draws_of(window)(numbered(DRAWS), numbered(DRAWS, tag=tag), np.full(DRAWS, 3))


def capped_sum_probabilities(values: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """``Pr[W + min(V, cap) = value]``: the convolution, term by term."""
    narrow = np.arange(-300, CAP + 1)
    shares = np.array([laplace_probability(NARROW, int(value)) for value in narrow])
    shares[-1] = laplace_tail(NARROW, CAP)
    wide = (1 - np.exp(-WIDE)) / (1 + np.exp(-WIDE)) * np.exp(-WIDE * np.abs(values[:, None] - narrow[None, :]))
    return np.asarray(wide @ shares)


def rejects(found: npt.NDArray[np.int64]) -> bool:
    edge = 32
    values = np.arange(-2000, 2001)
    expected = DRAWS * capped_sum_probabilities(values)
    bins = np.clip(values, -edge, edge)
    observed = np.bincount(np.clip(found, -edge, edge) + edge, minlength=2 * edge + 1)
    return chi_squared_rejects(observed, np.bincount(bins + edge, weights=expected))


def test_the_sum_follows_its_law() -> None:
    assert not rejects(draws())


@pytest.mark.parametrize("fault", [{"cap": 3}, {"cap": 10**6}, {"kind": OneForBoth}])
def test_another_cap_or_one_draw_for_both_is_rejected(fault: dict) -> None:
    assert rejects(draws(**fault))


def test_the_first_stage_drops_nothing_and_empty_items_just_pass() -> None:
    keys = StreamKeys(SECRET, run_id="run", plan_fingerprint="plan", stream="stream", threshold=40)
    noise = CappedSumNoise(40, keys, wide_epsilon=WIDE, narrow_epsilon=NARROW, cap=CAP)
    assert noise.draws_of(0)(numbered(5), numbered(5), np.zeros(5, dtype=np.int64)).tolist() == [40] * 5
    share = capped_sum_probabilities(np.arange(40, 2000)).sum()
    assert noise.empty_item_tail() / 2**128 == pytest.approx(share, rel=1e-9)
