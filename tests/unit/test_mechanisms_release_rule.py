"""The release modes as functions of one noisy count."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.mechanisms.between_thresholds import BetweenThresholds
from dp_transforms.mechanisms.release_rule import CountsAboveThreshold, Release

counts = st.integers(-(10**6), 10**6)


@given(threshold=st.integers(1, 1000), width=st.integers(1, 200), count=counts)
@settings(deadline=None)
def test_labels(threshold: int, width: int, count: int) -> None:
    release = BetweenThresholds(threshold, width)(count)
    if count < threshold:
        assert release is None
    elif count <= threshold + width - 1:
        assert release == Release("between", count, True)
    else:
        assert release == Release("above", None, False), "a count above the zone has been paid by nobody"


@given(threshold=st.integers(1, 1000), count=counts)
@settings(deadline=None)
def test_counts(threshold: int, count: int) -> None:
    expected = Release(None, count, True) if count >= threshold else None
    assert CountsAboveThreshold(threshold)(count) == expected


def test_the_edges_of_the_zone() -> None:
    rule = BetweenThresholds(10, 3)
    assert [release and release.zone for release in map(rule, range(9, 15))] == [None, *["between"] * 3, *["above"] * 2]
