"""Metrics for the operator: each number has a name of its own."""

from dp_transforms.core import operator_counts


def test_no_two_numbers_have_one_name():
    names = [value for name, value in vars(operator_counts).items() if name.isupper()]
    assert "counter_state_bytes" in names
    assert len(set(names)) == len(names) > 20
