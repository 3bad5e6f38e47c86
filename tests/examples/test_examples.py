"""The examples of the papers: what they print is so. Keys are fixed, so the outcomes are too."""

import pathlib
import runpy

import numpy as np

from dp_transforms.papers.noise_source import SecretNoise

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def test_many_labels_are_paid_for_only_where_the_teachers_are_torn(capsys):
    """Of 38 torn pictures each gives a boundary with probability 1/3 at most."""
    example = runpy.run_path(str(EXAMPLES / "pate_labels.py"))
    _, votes = example["made_up_votes"]()
    assert (votes.sum(axis=1) == example["TEACHERS"]).all(), "a user changes one vote for each picture"
    summary = example["main"](SecretNoise(bytes(32)))
    assert summary.labels + summary.boundaries == example["PICTURES"]
    assert not summary.halted
    assert 5 <= summary.boundaries <= summary.boundaries_allowed
    assert summary.correct > 0.99 * summary.labels
    assert summary.labels > 10 * summary.labels_by_composition > 1000
    assert f"{summary.labels} " in capsys.readouterr().out


def test_charging_users_finds_all_shifting_groups_and_the_sparse_vector_technique_only_the_large_ones():
    """Each row goes wrong with probability 0.001 at most. Only a global count makes the error grow with the stream."""
    example = runpy.run_path(str(EXAMPLES / "shifting_groups.py"))
    charging, *sparse, evolving, crowd = example["find_groups"](SecretNoise(bytes(32)))
    everything, nothing = dict(example["GROUPS"]), dict.fromkeys("ABC", 0)
    assert charging.found == crowd.found == everything
    assert [row.found for row in (evolving, *sparse)] == [nothing, nothing, nothing | {"C": 4}, nothing | {"C": 4}]
    assert all(row.false == 0 for row in (charging, *sparse, evolving, crowd))
    _, charged, sparse_errors, monitor = np.array(example["errors_of_longer_streams"]()).T
    assert all(errors[-1] < 2 * errors[0] for errors in (charged, monitor)), "a logarithm of the number of queries"
    assert sparse_errors[-1] > 1000 * sparse_errors[0]
