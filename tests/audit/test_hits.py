"""Runs of the real monitor: they agree with the exact law, and every planted fault shows.

Keys are fixed, so a test that passes keeps passing; over a random key the agreement test raises a false alarm with
probability 1e-6, and a bound on epsilon above the truth has probability at most 1e-3.
"""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from dp_transforms.audit.mechanism import HitsClaim, Mechanism
from dp_transforms.audit.query_law import ThresholdLaw
from dp_transforms.audit.streams import default_rounds
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor
from tests.audit.sampled_hits import (
    VALUE_REACH,
    Observed,
    design_sampling,
    judge_stream,
    run_stream,
    sample_stream,
    trial_of_stream,
    value_masses,
)
from tests.audit.statistics import FALSE_ALARM
from tests.helpers.exact_monitor import settings_for
from tests.helpers.trials import changed

RUNS = 3_000
SECRET = bytes(range(40, 80))
CLAIM = HitsClaim(epsilon=1.5, delta=1e-9, delta_accounting=5e-10, delta_open=5e-10)


def _law(settings):
    return ThresholdLaw(settings.hits.epsilon_per_query, settings.hits.zone_width)


def _mechanism(settings):
    return Mechanism(_law(settings), settings.threshold, settings.hits_per_user, 10**6, 1)


def _sampling(settings, runs=RUNS):
    mechanism = _mechanism(settings)
    return design_sampling(mechanism, CLAIM, runs, default_rounds(mechanism))


def _audit(claimed, *, real=None, monitor=HeavyHitterMonitor, claim=CLAIM, runs=RUNS):
    """The law is that of the claimed settings, the code runs on the real ones."""
    mechanism = _mechanism(claimed)
    return sample_stream(mechanism, claim, real or claimed, _sampling(claimed, runs), SECRET, monitor=monitor)


def _run(settings, sampling, with_user, copies, name=""):
    run = trial_of_stream(settings, sampling.stream, name)
    return run_stream(sampling, _law(settings), run, copies, SECRET, with_user=with_user)


def _settings(mode, hits=2, epsilon=0.25):
    return settings_for(mode, epsilon, hits, 60, math.ceil(2 / epsilon))


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_the_real_code_agrees_with_its_law(mode):
    audit = _audit(_settings(mode))
    assert audit.violations == ()
    assert audit.p_value > 0.001  # whatever the key, in all but one of a thousand
    sampling = audit.design
    assert 0 <= audit.epsilon <= sampling.law.epsilon(0.0, False)
    assert 0.5 * sampling.expected_epsilon < audit.epsilon < 2 * sampling.expected_epsilon
    assert 0.2 < sampling.expected_epsilon < CLAIM.epsilon
    deviation = math.sqrt(RUNS * sampling.p)
    assert abs(audit.p_seen - RUNS * sampling.p) < 5 * deviation


def test_the_adaptive_stream_of_labels_is_run():
    """Both distances occur in the sample, with counts on both edges of the zone."""
    settings = _settings("hits")
    sampling = _sampling(settings)
    assert not sampling.stream.is_static
    observed = _run(settings, sampling, True, 2_500)
    assert observed.values.keys() == {-1, settings.hits.zone_width - 1}
    assert observed.ends.sum() == 2_500
    small = trial_of_stream(settings, sampling.stream, "run")
    assert small.threshold == 2  # so that one other user holds every item
    unchanged = ("hits", "fingerprint")
    assert all(getattr(small, name) == getattr(settings, name) for name in unchanged)


def test_more_runs_show_more():
    settings = _settings("hits-with-counts")
    bounds = [_sampling(settings, runs).expected_epsilon for runs in (1_000, 10_000, 100_000, 10_000_000)]
    assert bounds == sorted(bounds)
    assert bounds[0] < 0.5 * bounds[-1]


def test_a_bound_above_the_claim_is_a_violation():
    """A claim that is far too small: no law is needed to see that, only counts."""
    audit = _audit(_settings("hits-with-counts"), claim=dataclasses.replace(CLAIM, epsilon=0.1))
    (violation,) = audit.violations
    assert "attains epsilon" in violation
    assert "99.9 %" in violation


def test_parts_are_independent_of_each_other():
    """The same copies in another part, or in the other world, draw other noise; in the same part they repeat."""
    settings = _settings("hits-with-counts")
    sampling = _sampling(settings)
    ends = [_run(settings, sampling, False, 500, name).ends for name in ("first", "first", "second")]
    assert (ends[0] == ends[1]).all()
    assert (ends[0] != ends[2]).any()


def test_each_part_has_a_name_of_its_own():
    """And all of them together are the runs of the design: else two parts would draw the same."""
    names = []

    class Noted(HeavyHitterMonitor):
        def __init__(self, plan, keys):
            super().__init__(plan, keys)
            names.append(plan.run_id)

    audit = _audit(_settings("hits-with-counts"), monitor=Noted)
    assert len(set(names)) == len(names) == 4
    assert audit.p_value > 0.001


def _as_expected(masses, runs):
    """Counts that differ from their expectation by less than one, so that no test finds anything in them."""
    shape, total = masses.shape, np.concatenate([[0.0], np.cumsum(masses.reshape(-1))])
    return np.diff(np.rint(runs * np.minimum(total, 1.0))).astype(np.int64).reshape(shape)


def test_the_smallest_p_value_is_multiplied_by_the_number_of_tests():
    """Two tests of the ends in each world, one of those that were excluded, and one of the values, also where there
    are none.

    On made-up counts, of which all but one are as expected: the p-value of that one is known, and the alarm is raised
    only where so many tests make it likely at most FALSE_ALARM times.
    """
    settings, tests = _settings("hits-with-counts"), 8
    law, sampling = _law(settings), _sampling(settings)
    shown = 10**6
    published = math.fsum(result[1] for result in law.results(sampling.stream.distance) if result.log_ratio > 0)

    def judged(excluded_published):
        worlds = []
        for masses, with_user in ((sampling.law.without_user, False), (sampling.law.with_user, True)):
            of_values = value_masses(law, sampling.stream.distance, VALUE_REACH, with_user)
            values = {sampling.stream.distance: _as_expected(of_values, shown)}
            worlds.append(Observed(_as_expected(masses, RUNS), values, shown, round(shown * published)))
        worlds[0].excluded_published = excluded_published
        return judge_stream(sampling, law, CLAIM, dict(enumerate(worlds)))

    assert judged(round(shown * published)).p_value == 1
    alarms = set()
    for deviations in np.arange(4.5, 6.5, 0.25):
        at = round(shown * published + deviations * math.sqrt(shown * published * (1 - published)))
        p_value = float(stats.binomtest(at, shown, published).pvalue)
        audit = judged(at)
        assert audit.p_value == pytest.approx(tests * p_value, rel=1e-9)
        assert bool(audit.violations) is (tests * p_value < FALSE_ALARM)
        alarms.add((p_value < FALSE_ALARM, bool(audit.violations)))
    assert alarms == {(False, False), (True, False), (True, True)}


# --- Planted faults


def _assert_found(audit):
    assert audit.p_value < FALSE_ALARM
    assert any("does not publish what its exact law says" in text for text in audit.violations)


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_half_the_noise_is_found(mode):
    claimed = _settings(mode)
    _assert_found(_audit(claimed, real=changed(claimed, epsilon_per_query=0.5)))


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
@pytest.mark.parametrize("hits", [1, 3])
def test_an_exclusion_too_early_or_too_late_is_found(mode, hits):
    """Of two hits. Too late: the user still counts when it is shown once more."""
    claimed = _settings(mode)
    figures = tuple(float(hit) for hit in range(1, hits + 1))
    _assert_found(_audit(claimed, real=changed(claimed, hits_per_user=hits, epsilon_after_hits=figures)))


@pytest.mark.parametrize("runs", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_a_handful_of_runs_raises_no_alarm(mode, runs):
    """So few show nothing: the event is then the certain one, which happens in every run of both worlds."""
    audit = _audit(_settings(mode), runs=runs)
    assert audit.violations == ()
    assert audit.epsilon == 0


def test_no_more_windows_are_run_than_the_plan_has():
    """Else the bound would be above what the plan can give away: here, in one window, the epsilon of one count."""
    settings = _settings("hits")
    mechanism = Mechanism(_law(settings), settings.threshold, settings.hits_per_user, 1, 1)
    sampling = design_sampling(mechanism, CLAIM, RUNS, 80)
    assert sampling.stream.rounds == 1
    assert sampling.expected_epsilon <= settings.hits.epsilon_per_query
