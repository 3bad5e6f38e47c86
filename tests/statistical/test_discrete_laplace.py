"""The noise as it is drawn: keyed uniforms, exact inversion. Each test rejects a correct sampler with probability 1e-6
over the key (fixed here), and has a twin that it must reject."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import pytest

from dp_transforms.mechanisms.noise_table import DiscreteLaplace, discrete_laplace
from tests.helpers.sampling_checks import (
    chi_squared_rejects,
    laplace_probability,
    laplace_rejects,
    laplace_tail,
    last_bin,
    numbered,
    stream_keys,
)

DRAWS = 1_000_000
SCALES = [1, 5, 50]


@functools.cache
def _uniforms(window: int, stage: str = "noise") -> npt.NDArray[np.uint64]:
    keys = stream_keys()
    function = keys.noise_uniforms(window) if stage == "noise" else keys.pass_uniforms(window)
    return function.of_pairs(numbered(DRAWS), numbered(DRAWS, tag=1))


@pytest.mark.parametrize("scale", SCALES)
def test_draws_follow_the_exact_distribution(scale: int) -> None:
    draws = discrete_laplace(1 / scale).sample(_uniforms(0))
    assert not laplace_rejects(draws, 1 / scale)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_scale_wrong_by_5_percent_is_rejected(scale: int, factor: float) -> None:
    draws = discrete_laplace(1 / (scale * factor)).sample(_uniforms(0))
    assert laplace_rejects(draws, 1 / scale)


def test_a_missing_zero_bin_is_rejected() -> None:
    """A sign and a magnitude drawn apart give twice the probability of 0: a classical mistake."""
    draws = discrete_laplace(1 / 5).sample(_uniforms(0))
    signs = np.where(_uniforms(1)[:, 0] >> np.uint64(63) == 0, 1, -1)
    magnitudes = np.where(draws >= 0, draws, -draws - 1)
    assert laplace_rejects(signs * magnitudes, 1 / 5)


# ---------------------------------------------------------------------------------------------------------------------
# Two stages: the bit "Z >= margin" from one uniform, then Z given the bit from another
# ---------------------------------------------------------------------------------------------------------------------

EPSILON = 1 / 5
# Far below the threshold (one bit in 700), around it, and so far above that the bit is certain.
MARGINS = [30, 12, 3, 1, 0, -1, -4, -15, -10_000]


def _two_stages(noise: DiscreteLaplace, margin: int, how: str) -> npt.NDArray[np.int64]:
    """What each query leads to: Z where the bit came up, margin - 1 for all that did not."""
    margins = np.full(DRAWS, margin)
    passed = noise.passes(_uniforms(0, "pass"), margins)
    values = np.full(DRAWS, margin - 1)
    rows = np.flatnonzero(passed)
    if how == "as built":
        values[rows] = noise.sample_given_pass(_uniforms(0)[rows], margins[rows])
    elif how == "second stage not conditioned":
        values[rows] = np.maximum(noise.sample(_uniforms(0)[rows]), margin - 1)
    elif how == "one uniform for both stages":
        values[rows] = noise.sample_given_pass(_uniforms(0, "pass")[rows], margins[rows])
    elif how == "conditioned on one less":
        values[rows] = np.maximum(noise.sample_given_pass(_uniforms(0)[rows], margins[rows] - 1), margin - 1)
    else:
        raise ValueError(how)
    return values


def _two_stages_rejected(values: npt.NDArray[np.int64], margin: int) -> bool:
    """Against the direct draw: "below" as one bin, then each value, the tail lumped."""
    if margin < -1_000:
        return laplace_rejects(values, EPSILON)
    edge = last_bin(EPSILON, DRAWS, margin)
    observed = np.bincount(np.clip(values, margin - 1, edge + 1) - (margin - 1), minlength=edge - margin + 3)
    below = 1 - laplace_tail(EPSILON, margin)
    inner = [laplace_probability(EPSILON, value) for value in range(margin, edge + 1)]
    expected = DRAWS * np.array([below, *inner, laplace_tail(EPSILON, edge + 1)])
    return chi_squared_rejects(observed, expected)


@pytest.mark.parametrize("margin", MARGINS)
def test_two_stages_have_the_distribution_of_one(margin: int) -> None:
    noise = discrete_laplace(EPSILON)
    values = _two_stages(noise, margin, "as built")
    assert not _two_stages_rejected(values, margin)
    if margin > -1_000:
        assert values.min() >= margin - 1


@pytest.mark.parametrize(
    "how", ["second stage not conditioned", "one uniform for both stages", "conditioned on one less"]
)
@pytest.mark.parametrize("margin", [12, 3, 1, 0])
def test_two_stages_done_wrong_are_rejected(margin: int, how: str) -> None:
    assert _two_stages_rejected(_two_stages(discrete_laplace(EPSILON), margin, how), margin)
