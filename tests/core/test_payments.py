"""What the real steps let users pay: no user budget is overdrawn, and no weight follows the events of others."""

import itertools
import random
from collections import Counter

import pytest

from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.planned_run import RunPart
from dp_transforms.core.state_chunks import entries_of_chunk
from dp_transforms.core.steps import SpendBudgets, WeighReplay
from tests.helpers.core_runs import naming_settings
from tests.helpers.rounds_runs import (
    WINDOWS,
    Run,
    all_named,
    at,
    busy_log,
    by_cell,
    contributions_of,
    span,
    state_of,
    trial_with_rounds,
)
from tests.helpers.small_runs import SECRET

USERS = 140  # a fault may show only where there are many
ONE_ROUND = naming_settings(WINDOWS, most_tests=60, forget_after=0, scale=30)
IN_ROUNDS = trial_with_rounds(percents=(10, 20, 30, 40))


def log():
    """Most users with a few items in some windows; every tenth with more than its budget pays for, early or late."""
    draws, found = random.Random(1), []
    for user, window in itertools.product(range(USERS), range(WINDOWS)):
        few = draws.randrange(5) * (user % 3 > 0 or draws.random() < 0.2)
        most = 80 if user % 10 == 0 and user // 10 % WINDOWS <= window else few
        found += [(f"u{user}", f"i{item}", at(window)) for item in draws.sample(range(90), most)]
    return found


def replay(log, folder):
    step = WeighReplay(ONE_ROUND, ONE_ROUND.stream_keys(SECRET))
    return [step.process(None, contributions_of(log, ONE_ROUND), span(), Counter())]


def stream(log, folder):
    """Each window by a worker that has just started: from what a worker keeps, or from the file of a part before."""
    step, stored, found = SpendBudgets(ONE_ROUND, ONE_ROUND.stream_keys(SECRET)), [], []
    for window in range(WINDOWS):
        part = state_of(folder / str(window), stored, window, window + 1)
        kept = [entries_of_chunk(kind, chunk) for kind, chunk in stored]
        state = step.restore(kept if window % 2 else part.entries(step.state_kind), window)
        here = span(windows=range(window, window + 1))
        found.append(step.process(state, contributions_of(log, ONE_ROUND, part), here, Counter()))
        stored += step.delta(state)
    return [ItemSums.merge(found)]


def rounds(log, folder, ends=(WINDOWS,)):
    """All that users hold is named in blocks; of later rounds each names what its noise lets pass."""
    found, stored, first = [], [], 0
    for end in ends:
        part = state_of(folder / str(first), stored, first, end)
        in_blocks = all_named(Run(log, IN_ROUNDS, part=RunPart(first, end)).rounds[0].sums)
        run = Run(log, IN_ROUNDS, part=part, told_blocks=in_blocks)
        found.append([of_round.sums for of_round in run.rounds])
        stored += run.stored
        first = end
    return [ItemSums.merge(of_round) for of_round in zip(*found, strict=True)]


def parts(log, folder):
    return rounds(log, folder, (2, 7, WINDOWS))


@pytest.mark.parametrize("run", [replay, stream, rounds, parts])
def test_no_user_pays_more_than_a_budget_in_all_and_in_each_round(run, tmp_path):
    """Each user holds items of its own, so that what it pays is seen. Some spend nearly all that they have."""
    of_rounds = run([(user, f"{user} {item}", time) for user, item, time in log()], tmp_path)
    trial = ONE_ROUND if len(of_rounds) == 1 else IN_ROUNDS
    price = dict(zip(trial.contributions.weights, trial.contributions.units, strict=True))
    for sums, units in zip(of_rounds, trial.units_of_rounds, strict=True):
        spent = Counter()
        for (_, item), weight in by_cell(sums).items():
            spent[item.split()[0]] += price[weight]  # else it is no weight of the list
        assert 0.9 * units < max(spent.values()) <= units
        assert len(spent) > USERS / 4, "many pay in each round"
    assert sum(trial.units_of_rounds) <= BUDGET_UNITS


@pytest.mark.parametrize("run", [replay, stream])
def test_what_users_add_is_the_same_whoever_else_is_there(run, tmp_path):
    everybody = log()
    halves = [[event for event in everybody if int(event[0][1:]) % 2 == half] for half in (0, 1)]
    sums = []
    for number, events in enumerate((everybody, *halves)):
        (tmp_path / str(number)).mkdir()
        sums.append(by_cell(*run(events, tmp_path / str(number))))
    assert sums[0] == sums[1] + sums[2]


def test_what_users_add_in_rounds_follows_what_was_named_and_nothing_else_of_others():
    trial, everybody = trial_with_rounds(threshold=25, false_names=40), busy_log(1, USERS)
    whole = Run(everybody, trial)
    users = sorted({user for user, _, _ in everybody})
    halves = [Run([event for event in everybody if event[0] in users[half::2]], trial, told=whole) for half in (0, 1)]
    assert whole.unpaid > 0
    for of_all, one, other in zip(whole.rounds, *(half.rounds for half in halves), strict=True):
        assert by_cell(of_all.sums) == by_cell(one.sums) + by_cell(other.sums)
        assert len(of_all.sums) > 0
