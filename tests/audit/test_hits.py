"""Runs of the real monitor: they agree with the exact law, and what is changed in it shows.

Keys are fixed, so a test that passes keeps passing; over a random key the agreement test fails with probability 0.001.
"""

import math

import pytest

from dp_transforms.audit.hits import Mechanism, ThresholdLaw, default_rounds
from tests.audit.sampled_hits import p_values, run_stream
from tests.audit.statistics import FALSE_ALARM, smallest
from tests.helpers.attack_streams import worst_stream
from tests.helpers.exact_monitor import settings_for
from tests.helpers.trials import changed

COPIES = 3_000
EPSILON, HITS = 0.25, 2
SECRET = bytes(range(40, 80))


def _settings(mode):
    return settings_for(mode, EPSILON, HITS, 60, math.ceil(2 / EPSILON))


def _found(mode, real=None):
    """By how many of its tests' p-values what is published differs from its law, and what was seen of both worlds.

    The user is removed, and the stream is the worst one: with a zone one that looks back. real: what runs, if it is not
    what the law is of.
    """
    claimed = _settings(mode)
    law = ThresholdLaw(claimed.hits.epsilon_per_query, claimed.hits.zone_width)
    mechanism = Mechanism(law, claimed.threshold, HITS, 10**6, 1)
    stream = worst_stream(mechanism, 2 * EPSILON, default_rounds(mechanism), False)
    run = (mechanism, stream, real or claimed, COPIES, SECRET)
    observed = {with_user: run_stream(*run, with_user=with_user) for with_user in (False, True)}
    return smallest(p_values(mechanism, stream, observed)), stream, observed


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_the_real_code_agrees_with_its_law(mode):
    (p_value, name), stream, observed = _found(mode)
    assert p_value > 0.001, name
    assert stream.is_static == (mode == "hits-with-counts")
    for of_world in observed.values():
        assert of_world.ends.sum() == COPIES
        assert of_world.values.keys() == set(stream.distances), "both edges of the zone are seen"
        assert of_world.excluded > 0.9 * COPIES
    assert (observed[True].ends != observed[False].ends).any()


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_half_the_noise_is_found(mode):
    assert _found(mode, changed(_settings(mode), epsilon_per_query=0.5))[0][0] < FALSE_ALARM


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
@pytest.mark.parametrize("hits", [1, 3])
def test_an_exclusion_too_early_or_too_late_is_found(mode, hits):
    """Of two hits. Too late: the user still counts when it is shown once more."""
    figures = tuple(float(hit) for hit in range(1, hits + 1))
    real = changed(_settings(mode), hits_per_user=hits, epsilon_after_hits=figures)
    assert _found(mode, real)[0][0] < FALSE_ALARM
