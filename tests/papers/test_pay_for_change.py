"""Pay only for change: what is charged on a stream."""

import pytest

from dp_transforms.papers.noise_source import Halted
from dp_transforms.papers.pay_for_change import PayForChange
from dp_transforms.papers.target_charging import HitLimit, TargetCharging
from tests.papers.scripted import Scripted


def test_only_changes_are_charged_and_the_last_one_ends_it():
    limit = HitLimit(3, epsilon=0.5)
    answers = PayForChange(TargetCharging(None, limit), prior=4)
    computation = Scripted([4, 4, 7, 7, 7, 4, 5, 5])
    used = []
    for expected in (4, 4, 7, 7, 7, 4, 5):
        assert answers.ask(computation) == answers.prior == expected
        used.append(limit.used)
    assert used == [0, 0, 1, 1, 1, 2, 3]
    with pytest.raises(Halted):
        answers.ask(computation)
    assert computation.runs == 7, "a refused step does not touch the data"


def test_an_exception_is_a_change_and_the_last_answer_stays():
    limit = HitLimit(3, epsilon=0.5)
    answers = PayForChange(TargetCharging(None, limit), prior="a")
    with pytest.raises(KeyError):
        answers.ask(Scripted([KeyError()]))
    assert (answers.prior, limit.used) == ("a", 1)
