"""The example examples/pate_labels.py: many labels, paid for only where the teachers are torn."""

import pathlib
import runpy

import pytest

from dp_transforms.mechanisms.papers.noise_source import SecretNoise

PATH = pathlib.Path(__file__).parents[2] / "examples" / "pate_labels.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(PATH))


def test_it_gives_far_more_labels_than_composition(example, capsys):
    """One draw under a fixed key. Of 38 torn pictures each gives a boundary with probability 1/3 at most."""
    summary = example["main"](SecretNoise(bytes(32)))
    assert summary.labels + summary.boundaries == example["PICTURES"]
    assert not summary.halted
    assert 5 <= summary.boundaries <= summary.boundaries_allowed
    assert summary.correct > 0.99 * summary.labels
    assert summary.labels > 10 * summary.labels_by_composition > 1000
    printed = capsys.readouterr().out
    for number in (summary.labels, summary.boundaries, summary.boundaries_allowed, summary.labels_by_composition):
        assert f"{number} " in printed


def test_when_the_teachers_are_torn_everywhere_it_halts(example):
    example["main"].__globals__["ONE_HARD_PICTURE_IN"] = 1
    try:
        summary = example["main"](SecretNoise(bytes(32)))
    finally:
        example["main"].__globals__["ONE_HARD_PICTURE_IN"] = 80
    assert summary.halted
    assert summary.boundaries == summary.boundaries_allowed
    assert summary.labels < 10 * summary.boundaries


def test_a_user_changes_one_vote_for_each_picture(example):
    truth, votes = example["made_up_votes"]()
    assert votes.shape == (example["PICTURES"], example["LABELS"])
    assert (votes.sum(axis=1) == example["TEACHERS"]).all()
    assert (votes.argmax(axis=1) == truth)[1:80].all()
