"""The law of a query, the best adaptive adversary and the laws of streams, against brute force."""

import itertools
import math

import numpy as np
import pytest

from dp_transforms.accounting.discrete_laplace_law import probability
from dp_transforms.audit.hits import Mechanism, Result, ThresholdLaw, best_delta, laplace_mass
from dp_transforms.core.hit_noise import ReleaseRule
from tests.audit.sampled_hits import value_masses
from tests.helpers.adversary import Action, best_adversary, extract_kernel, kernel_of_law
from tests.helpers.attack_streams import AttackStream, Steps, law_of_stream
from tests.helpers.capped_sum_law import CappedSumLaw
from tests.helpers.exact_monitor import settings_for

REACH = 80  # of the noise in the sums below; at scale 2 nothing is left beyond
EPSILON_OF_QUERY = 0.5


def _by_rule(rule, threshold, distance):
    """Every published result on its own, by the real release rule."""
    count = threshold + distance
    masses = {}
    for noisy in range(count - REACH, count + REACH + 2):
        masses.setdefault(rule(noisy), [0.0, 0.0])
        masses[rule(noisy)][0] += probability(EPSILON_OF_QUERY, noisy - count - 1)
        masses[rule(noisy)][1] += probability(EPSILON_OF_QUERY, noisy - count)
    return [
        Result(with_user, without_user, math.log(with_user / without_user), bool(release and release.charged))
        for release, (with_user, without_user) in masses.items()
        if with_user > 0 and without_user > 0
    ]


def _merged(results):
    found = {}
    for result in results:
        key = (round(result.log_ratio, 6), result.charged)
        before = found.get(key, (0.0, 0.0))
        found[key] = (before[0] + result.with_user, before[1] + result.without_user)
    return {key: masses for key, masses in found.items() if max(masses) > 1e-14}


@pytest.mark.parametrize("zone_width", [0, 1, 4])
@pytest.mark.parametrize("distance", [-9, -2, -1, 0, 1, 3, 4, 8])
def test_results_are_those_of_the_release_rule(zone_width, distance):
    rule = ReleaseRule(20, zone_width or None)
    results = ThresholdLaw(EPSILON_OF_QUERY, zone_width).results(distance)
    expected, found = _merged(_by_rule(rule, 20, distance)), _merged(list(results))
    assert found.keys() == expected.keys()
    for key, masses in found.items():
        assert masses == pytest.approx(expected[key], rel=1e-9)
    for world in (0, 1):
        assert math.fsum(result[world] for result in results) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_results_are_those_of_the_real_monitor(mode):
    """Every outcome of its 128-bit uniforms, from `tests/privacy`."""
    settings = settings_for(mode, EPSILON_OF_QUERY, 1, 12, 4)
    distances = range(-4, 8)
    kernel = extract_kernel(settings, [Action(settings.threshold + distance) for distance in distances])
    for distance, entries in zip(distances, kernel[0], strict=True):
        expected = _merged(list(entries))
        found = _merged(list(ThresholdLaw(EPSILON_OF_QUERY, settings.hits.zone_width).results(distance)))
        assert found.keys() == expected.keys()
        for key, masses in found.items():
            assert masses == pytest.approx(expected[key], rel=1e-9)


@pytest.mark.parametrize("zone_width", [0, 3])
def test_published_values_and_lone_items(zone_width):
    law = ThresholdLaw(EPSILON_OF_QUERY, zone_width)
    for distance in (-1, 2):
        for with_user in (False, True):
            masses = value_masses(law, distance, 10, with_user)
            expected = np.zeros(21)
            for noise in range(-REACH, REACH):
                offset = noise + with_user  # relative to the count without the user
                above_threshold = distance + offset
                if above_threshold >= 0 and (not zone_width or above_threshold < zone_width):
                    expected[min(max(offset, -10), 10) + 10] += probability(EPSILON_OF_QUERY, noise)
            assert masses == pytest.approx(expected, abs=1e-14)
    alone = math.fsum(probability(EPSILON_OF_QUERY, noise) for noise in range(11, REACH))
    assert law.alone(12) == pytest.approx(alone, rel=1e-12)


def test_masses_far_out_keep_their_digits():
    """Where a difference of two tails would be 0."""
    assert laplace_mass(0.5, 200, 201, 0) == pytest.approx(probability(0.5, 200) + probability(0.5, 201), rel=1e-12)
    assert laplace_mass(0.5, None, -300, 0) == pytest.approx(math.exp(-150) / (1 + math.exp(-0.5)), rel=1e-12)
    assert laplace_mass(0.5, 3, 2, 0) == 0


@pytest.mark.parametrize("distance", [-12, -1, 0, 5])
def test_the_two_noises_of_kms21(distance):
    law = CappedSumLaw(wide_epsilon=0.1, narrow_epsilon=0.4, cap=6)
    sums = {}
    for wide in range(-600, 600):
        for narrow in range(-90, 90):
            total = wide + min(narrow, 6)
            sums[total] = sums.get(total, 0.0) + probability(0.1, wide) * probability(0.4, narrow)
    top = [math.fsum(p for total, p in sums.items() if distance + held + total >= 0) for held in (1, 0)]
    published, silent = law.results(distance)
    assert (published.charged, silent.charged) == (True, False)
    assert published[:2] == pytest.approx(top, rel=1e-9)
    assert silent[:2] == pytest.approx([1 - mass for mass in top], rel=1e-9)
    assert published.log_ratio == pytest.approx(math.log(top[0] / top[1]), rel=1e-6)
    assert silent.log_ratio == pytest.approx(math.log((1 - top[0]) / (1 - top[1])), rel=1e-6)


def test_ratios_of_very_wide_noise():
    """Losses of 1e-6 with six digits, where probabilities alone would leave none beyond."""
    published, silent = CappedSumLaw(wide_epsilon=1e-6, narrow_epsilon=1e-4, cap=10**5).results(-1)
    assert 0 < published.log_ratio <= 1e-6
    # sum over results of P = sum of Q = 1.
    balance = published.without_user * math.expm1(published.log_ratio) + silent.without_user * math.expm1(
        silent.log_ratio
    )
    assert abs(balance) < 1e-6 * 1e-6


EPSILON = 0.7


def _single_results(zone_width, distance):
    """Every noisy count on its own where it is published; only "below" and "above" are lumps. From the definition."""
    masses = {}
    for noise in range(-45, 46):
        value = distance + noise  # minus the threshold
        name = "below" if value < 0 else value if not zone_width or value < zone_width else "above"
        entry = masses.setdefault(name, [0.0, 0.0])
        entry[0] += probability(EPSILON, noise - 1)
        entry[1] += probability(EPSILON, noise)
    return [
        Result(mass[0], mass[1], math.log(mass[0] / mass[1]), int(isinstance(name, int)))
        for name, mass in masses.items()
    ]


def _best_by_force(by_distance, hits, rounds, epsilon, adds_user, p, q):
    """The value of a state of the adversary, by trying every distance, and every one after every result of it."""
    best = max(0.0, p - math.exp(epsilon) * q)
    if not hits or not rounds:
        return best
    for results in by_distance:
        total = 0.0
        for result in results:
            first, second = result[:2] if adds_user else (result[1], result[0])
            total += _best_by_force(
                by_distance, hits - result.charged, rounds - 1, epsilon, adds_user, p * first, q * second
            )
        best = max(best, total)
    return best


def _lumped(results):
    """Equal ratios and charges together: otherwise brute force would take forever."""
    found = {}
    for result in results:
        key = (round(result.log_ratio, 9), result.charged)
        old = found.get(key, Result(0.0, 0.0, *key))
        found[key] = Result(result[0] + old[0], result[1] + old[1], *key)
    return list(found.values())


@pytest.mark.parametrize("zone_width", [0, 1, 3])
@pytest.mark.parametrize(("hits", "rounds"), [(1, 3), (2, 3)])
@pytest.mark.parametrize("adds_user", [True, False])
def test_two_distances_are_as_bad_as_all(zone_width, hits, rounds, adds_user):
    """The theorem of docs/proofs.md, by force: over twelve distances, after every result, nothing exceeds the program
    that knows only one below the threshold and one below the upper edge."""
    law = ThresholdLaw(EPSILON, zone_width)
    everywhere = [_lumped(_single_results(zone_width, distance)) for distance in range(-6, 6)]
    critical = [law.near] if law.far is None else [law.near, law.far]
    for epsilon in (0.0, 0.4, EPSILON, 1.1):
        by_force = _best_by_force(everywhere, hits, rounds, epsilon, adds_user, 1.0, 1.0)
        curve = best_adversary(
            kernel_of_law(law, critical, hits), step=EPSILON, rounds=rounds, epsilons=[epsilon], adds_target=adds_user
        )
        assert curve.epsilons[0] == pytest.approx(epsilon)
        assert curve.deltas[0] == pytest.approx(by_force, rel=1e-6, abs=1e-12)
        assert curve.deltas[0] <= by_force + 1e-13, "rounded down"


@pytest.mark.parametrize("zone_width", [0, 12])
@pytest.mark.parametrize(("hits", "windows", "items"), [(1, 9, 1), (3, 60, 1), (3, 7, 4), (2, 1, 5)])
def test_the_program_of_the_audit_is_that_of_the_general_adversary(zone_width, hits, windows, items):
    """In both directions."""
    law = ThresholdLaw(0.2, zone_width)
    mechanism = Mechanism(law, 10**6, hits, 10**6, items)
    for adds_user in (True, False):
        for epsilon in (0.0, 0.13, 0.4, 1.0):
            curve = best_adversary(
                kernel_of_law(law, law.distances, hits),
                step=0.2,
                rounds=windows,
                items_per_window=items,
                epsilons=[epsilon],
                adds_target=adds_user,
            )
            found = best_delta(mechanism, epsilon, windows, items, adds_user)
            assert found == pytest.approx(curve.deltas[0], rel=1e-12, abs=1e-18)
    assert found > 0 or windows * items < 6


def _best_in_windows(by_distance, hits, windows, most, epsilon, mixed, p=1.0, q=1.0):
    """The user removed: before each window, all choices of up to so many calls (mixed: each at a distance of its own);
    the adversary goes on with what all results of the window were."""
    best = max(0.0, q - math.exp(epsilon) * p)
    if not hits or not windows:
        return best

    def after(calls, hits, p, q):
        if not calls or not hits:
            return _best_in_windows(by_distance, hits, windows - 1, most, epsilon, mixed, p, q)
        return sum(
            after(calls[1:], hits - result.charged, p * result.with_user, q * result.without_user)
            for result in calls[0]
        )

    for size in range(1, most + 1):
        chosen = itertools.product(by_distance, repeat=size) if mixed else ((one,) * size for one in by_distance)
        best = max(best, *(after(calls, hits, p, q) for calls in chosen))
    return best


@pytest.mark.parametrize("zone_width", [0, 3])
@pytest.mark.parametrize(("hits", "windows", "most"), [(1, 2, 2), (2, 2, 2), (2, 1, 3), (3, 1, 4)])
def test_several_items_in_a_window_by_force(zone_width, hits, windows, most):
    """One distance a window is attained exactly; and whatever the distances in a window, single items are a ceiling."""
    law = ThresholdLaw(EPSILON, zone_width)
    critical = [law.near] if law.far is None else [law.near, law.far]

    def program(rounds, items_per_window, epsilon):
        kernel = kernel_of_law(law, critical, hits)
        curve = best_adversary(
            kernel,
            step=EPSILON,
            rounds=rounds,
            items_per_window=items_per_window,
            epsilons=[epsilon],
            adds_target=False,
        )
        return float(curve.deltas[0])

    for epsilon in (0.0, 0.4, 1.1):
        one_each = _best_in_windows([_lumped([*law.results(d)]) for d in critical], hits, windows, most, epsilon, False)
        assert program(windows, most, epsilon) == pytest.approx(one_each, rel=1e-6, abs=1e-12)
        everywhere = [_lumped(_single_results(zone_width, distance)) for distance in (-3, -1, 0, 2, 3)]
        mixed = _best_in_windows(everywhere, hits, windows, most, epsilon, True)
        assert one_each <= mixed * (1 + 1e-9) <= program(windows * most, 1, epsilon) * (1 + 1e-6) + 1e-12
    if zone_width and hits == 1:
        assert program(2, 2, 0.4) < 0.999 * program(4, 1, 0.4), "looking back is worth something"


def _transcripts(law, hits, stream):
    """Both probabilities of every sequence of results, by walking through all of them."""

    def walk(p, q, loss, paid, left, last):
        if not left or paid == hits:
            yield p, q
            return
        in_direction = loss if stream.adds_user else -loss
        distance = stream.later_distance if in_direction > stream.switch_loss + 1e-9 else stream.distance
        if (stream.rounds - left) % stream.items_per_window:
            distance = last  # within a window nothing is known of it
        for result in law.results(distance):
            after = loss + result.log_ratio
            yield from walk(p * result[0], q * result[1], after, paid + result.charged, left - 1, distance)

    return walk(1.0, 1.0, 0.0, 0, stream.rounds, stream.distance)


STREAMS = [
    (ThresholdLaw(EPSILON, 0), AttackStream.static(False, -1, 6)),
    (ThresholdLaw(EPSILON, 0), AttackStream.static(True, 2, 6)),
    (ThresholdLaw(EPSILON, 3), AttackStream.static(True, 1, 6)),
    (ThresholdLaw(EPSILON, 3), AttackStream(True, 2, -1, 0.8, 6)),
    (ThresholdLaw(EPSILON, 3), AttackStream(False, -1, 2, 0.7, 6)),
    (ThresholdLaw(EPSILON, 3), AttackStream(False, -1, 2, 0.7, 6, 2)),
    (ThresholdLaw(EPSILON, 3), AttackStream(True, 2, -1, 0.0, 6, 2)),
    (ThresholdLaw(EPSILON, 3), AttackStream(True, 2, -1, 0.8, 7, 3)),
    (ThresholdLaw(EPSILON, 3), AttackStream.static(False, 1, 6, 4)),
]


@pytest.mark.parametrize(("law", "stream"), STREAMS)
@pytest.mark.parametrize("hits", [1, 2, 3])
def test_law_of_a_stream_against_all_transcripts(law, stream, hits):
    transcripts = [*_transcripts(law, hits, stream)]
    exact = law_of_stream(law, hits, stream)
    assert exact.with_user.sum() == pytest.approx(1) == exact.without_user.sum()
    for epsilon in (0.0, 0.03, 0.5, 1.3):
        for adds_user in (True, False):
            expected = math.fsum(
                max(0.0, p - math.exp(epsilon) * q if adds_user else q - math.exp(epsilon) * p) for p, q in transcripts
            )
            assert exact.delta(epsilon, adds_user) == pytest.approx(expected, rel=1e-7, abs=1e-14)
            assert exact.delta(epsilon, adds_user) <= expected * (1 + 1e-12) + 1e-15


def _worst_law(zone_width, epsilon, hits, total, rounds, adds_user):
    law = ThresholdLaw(epsilon, zone_width)
    if law.far is None:
        return law_of_stream(law, hits, AttackStream.static(adds_user, law.near, rounds))
    first, later = (law.far, law.near) if adds_user else (law.near, law.far)
    return law_of_stream(law, hits, AttackStream(adds_user, first, later, total, rounds))


@pytest.mark.parametrize(("zone_width", "epsilon", "hits"), [(0, 0.1, 1), (0, 0.1, 5), (8, 0.25, 2), (40, 0.05, 4)])
@pytest.mark.parametrize("adds_user", [True, False])
def test_the_worst_stream_is_as_bad_as_the_best_adversary(zone_width, epsilon, hits, adds_user):
    """To one part in 10^5: so what the audit calls the worst stream is the worst."""
    law = ThresholdLaw(epsilon, zone_width)
    for total in (0.3, 1.0):
        kernel = kernel_of_law(law, law.distances, hits)
        best = best_adversary(kernel, step=epsilon, rounds=120, epsilons=[total], adds_target=adds_user).deltas[0]
        found = _worst_law(zone_width, epsilon, hits, total, 120, adds_user).delta(total, adds_user)
        assert found == pytest.approx(best, rel=1e-5, abs=1e-14)


def test_streams_whose_loss_is_no_function_of_what_is_kept_are_refused():
    law = ThresholdLaw(EPSILON, 3)
    with pytest.raises(ValueError, match="does not move by one amount"):
        Steps.of_law(law, (-4,))
