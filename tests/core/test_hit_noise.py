"""What one noisy count leads to; and the two noises of hits as printed, as they are drawn for a query.

The statistical test rejects a correct draw with probability 1e-6 over the key (fixed here), and has twins.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core.hit_noise import CappedSumNoise, Release, ReleaseRule
from dp_transforms.core.randomness import StreamKeys
from tests.helpers.sampling_checks import SECRET, chi_squared_rejects, laplace_probability, laplace_tail, numbered

counts = st.integers(-(10**6), 10**6)


@given(threshold=st.integers(1, 1000), width=st.integers(1, 200), distance=st.integers(-2, 201) | counts)
def test_a_zone_is_charged_and_what_is_above_it_is_named_without_a_count(threshold, width, distance):
    count = threshold + distance
    release = ReleaseRule(threshold, width)(count)
    if distance < 0:
        assert release is None
    elif distance < width:
        assert release == Release("between", count, True)
    else:
        assert release == Release("above", None, False), "a count above the zone has been paid by nobody"


@pytest.mark.parametrize("with_counts", [True, False])
@given(threshold=st.integers(-1000, 1000), distance=st.integers(-3, 3) | counts)
def test_without_a_zone_all_that_reaches_the_threshold_is_charged(with_counts, threshold, distance):
    count = threshold + distance
    expected = Release(None, count if with_counts else None, True) if distance >= 0 else None
    assert ReleaseRule(threshold, with_counts=with_counts)(count) == expected


DRAWS = 200_000
WIDE, NARROW, CAP = 0.2, 0.4, 2


class OneForBoth(StreamKeys):
    """A planted fault: both noises from the same uniforms."""

    def noise_pair_uniforms(self, window, number):
        return super().noise_pair_uniforms(window, number % 3)


def printed_noise(kind=StreamKeys, cap=CAP):
    keys = kind(SECRET, run_id="run", plan_fingerprint="plan", stream="stream", threshold=40)
    return CappedSumNoise(40, keys, wide_epsilon=WIDE, narrow_epsilon=NARROW, cap=cap)


def capped_sum_probabilities(values):
    """``Pr[W + min(V, cap) = value]``: the convolution, term by term."""
    narrow = np.arange(-300, CAP + 1)
    shares = np.array([laplace_probability(NARROW, int(value)) for value in narrow])
    shares[-1] = laplace_tail(NARROW, CAP)
    wide = (1 - np.exp(-WIDE)) / (1 + np.exp(-WIDE)) * np.exp(-WIDE * np.abs(values[:, None] - narrow[None, :]))
    return wide @ shares


@pytest.mark.parametrize("fault", [{}, {"cap": 3}, {"cap": 10**6}, {"kind": OneForBoth}])
def test_the_printed_noise_follows_its_law_and_another_cap_or_one_draw_for_both_does_not(fault):
    draws = printed_noise(**fault).draws_of(0)(numbered(DRAWS), numbered(DRAWS, tag=1), np.full(DRAWS, 3))
    edge, values = 32, np.arange(-2000, 2001)
    expected = np.bincount(np.clip(values, -edge, edge) + edge, weights=DRAWS * capped_sum_probabilities(values))
    observed = np.bincount(np.clip(draws, -edge, edge) + edge, minlength=2 * edge + 1)
    assert chi_squared_rejects(observed, expected) == bool(fault)


def test_the_first_stage_of_printed_noise_drops_nothing_and_empty_items_just_pass():
    noise = printed_noise()
    assert noise.draws_of(0)(numbered(5), numbered(5), np.zeros(5, dtype=np.int64)).tolist() == [40] * 5
    share = capped_sum_probabilities(np.arange(40, 2000)).sum()
    assert noise.empty_item_tail() / 2**128 == pytest.approx(share, rel=1e-9)
