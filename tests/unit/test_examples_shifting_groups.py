"""The example of the shifting groups: who finds which groups, and how errors grow."""

import pathlib
import runpy

import numpy as np
import pytest

from dp_transforms.mechanisms.papers.noise_source import SecretNoise

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "shifting_groups.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(SCRIPT))


def test_every_user_holds_three_heavy_items(example):
    stream = example["make_stream"]()
    groups = [step for step in stream if step.group is not None]
    assert len(stream) == len(groups) + example["LONELY_ITEMS"]
    assert {group: sum(step.group == group for step in groups) for group in "ABC"} == example["GROUPS"]
    held = np.sum([step.members for step in groups], axis=0)
    assert (held == example["HELD_PER_USER"]).all()
    for step in stream:
        size = 1 if step.group is None else example["USERS"] // example["GROUPS"][step.group]
        assert step.members.sum() == size
    # Groups of different kinds cut across each other: no A lies within one B.
    kinds = {group: np.array([step.members for step in groups if step.group == group]) for group in "ABC"}
    assert ((kinds["A"].astype(int) @ kinds["B"].astype(int).T > 0).sum(axis=1) > 1).all()


def test_charging_users_finds_all_groups_and_the_sparse_vector_technique_only_the_large_ones(example):
    """Each row goes wrong with probability 0.001 at most; the key is fixed, so the outcome is too."""
    charging, *sparse, evolving, crowd = example["find_groups"](SecretNoise(bytes(32)))
    everything, nothing = dict(example["GROUPS"]), dict.fromkeys("ABC", 0)
    assert charging.found == everything
    assert crowd.found == everything
    assert evolving.found == nothing
    assert [row.found for row in sparse] == [nothing, nothing | {"C": 4}, nothing | {"C": 4}]
    assert all(row.false == 0 for row in (charging, *sparse, evolving, crowd))
    assert charging.sure < 600 < 5_400 < sparse[0].sure
    assert all(row.sure > 1_800 for row in sparse)


def test_only_a_global_count_makes_the_error_grow_with_the_stream(example):
    errors = np.array(example["errors_of_longer_streams"]())
    heavy, charging, sparse, monitor = errors.T
    assert (np.diff(heavy) > 0).all()
    for users_charged in (charging, monitor):
        assert users_charged[-1] < 2 * users_charged[0], "a logarithm of the number of queries"
    assert sparse[-1] > 1000 * sparse[0]
    assert (charging < sparse).all()
    assert sparse[0] < monitor[0]
    assert monitor[-1] < sparse[-1], "the constants of [KMS21] pay in the end"


def test_the_script_prints_both_tables(capsys):
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("Sparse, halts after") == 3
    assert "ThresholdMonitor, 2,000 times the users" in printed
    assert "individual charging, 3 hits" in printed
    assert "10,000,000" in printed


def test_the_error_grows_with_what_one_user_holds(example):
    """About as its square root where it is charged; the technique that halts does not ask who holds what."""
    held, charging, sparse, monitor = np.array(example["errors_of_heavier_users"]()).T
    assert held.tolist() == [1, 3, 10, 30, 100, 300]
    for users_charged in (charging, monitor):
        assert (np.diff(users_charged) > 0).all()
    assert (np.diff(sparse) == 0).all()
    from_ten = charging[held >= 10] / np.sqrt(held[held >= 10])
    assert from_ten.max() < 2 * from_ten.min()
