"""The modes as functions of one noisy count."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.checks import LARGEST_WHOLE
from dp_transforms.core.hit_noise import AboveThreshold, BetweenThresholds, Release

counts = st.integers(-(10**6), 10**6)


@given(threshold=st.integers(1, 1000), width=st.integers(1, 200), count=counts)
@settings(deadline=None)
def test_labels(threshold, width, count):
    release = BetweenThresholds(threshold, width)(count)
    if count < threshold:
        assert release is None
    elif count <= threshold + width - 1:
        assert release == Release("between", count, True)
    else:
        assert release == Release("above", None, False), "a count above the zone has been paid by nobody"


@given(threshold=st.integers(1, 1000), count=counts)
@settings(deadline=None)
def test_counts(threshold, count):
    expected = Release(None, count, True) if count >= threshold else None
    assert AboveThreshold(threshold, with_counts=True)(count) == expected


def test_the_edges_of_the_zone():
    rule = BetweenThresholds(10, 3)
    assert [release and release.zone for release in map(rule, range(9, 15))] == [None, *["between"] * 3, *["above"] * 2]


@given(threshold=st.integers(1, 1000), count=counts)
@settings(deadline=None)
def test_names(threshold, count):
    expected = Release(None, None, True) if count >= threshold else None
    assert AboveThreshold(threshold, with_counts=False)(count) == expected


@pytest.mark.parametrize(
    "rule",
    [
        lambda threshold: AboveThreshold(threshold, with_counts=True),
        lambda threshold: AboveThreshold(threshold, with_counts=False),
        lambda threshold: BetweenThresholds(threshold, 1),
    ],
)
def test_a_rule_publishes_at_its_threshold_and_not_one_below(rule):
    for threshold in (-LARGEST_WHOLE, -1, 0, 1, LARGEST_WHOLE):
        asked = rule(threshold)
        assert asked(threshold - 1) is None
        release = asked(threshold)
        assert release is not None
        assert release.charged
    for threshold in (-LARGEST_WHOLE - 1, LARGEST_WHOLE + 1, 1.5, True, None):
        with pytest.raises(ValueError, match="threshold must be"):
            rule(threshold)


def test_a_zone_has_a_width():
    assert BetweenThresholds(10, 1)(10) == Release("between", 10, True)
    assert BetweenThresholds(10, 1)(11) == Release("above", None, False)
    for width in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="zone_width must be a whole number"):
            BetweenThresholds(10, width)
