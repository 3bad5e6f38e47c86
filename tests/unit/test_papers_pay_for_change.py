"""Pay only for change: what is charged on a stream, and that a stream costs no more than its changes."""

import pytest

from dp_transforms.papers.noise_source import Halted, SecretNoise
from dp_transforms.papers.pay_for_change import PayForChange
from dp_transforms.papers.private_computation import exponential_choice
from dp_transforms.papers.target_charging import HitLimit, TargetCharging
from tests.helpers.scripted import Scripted


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
    class Raises:
        epsilon, delta = 0.5, 0.0

        def run(self, data, noise):
            raise KeyError("the data are like this")

    limit = HitLimit(3, epsilon=0.5)
    answers = PayForChange(TargetCharging(None, limit), prior="a")
    with pytest.raises(KeyError):
        answers.ask(Raises())
    assert (answers.prior, limit.used) == ("a", 1)


def test_a_long_stream_costs_its_few_changes():
    """Whether 500 users are there, of 100 or 900; they come and go in 600 steps."""
    stream = [900 if 200 <= step < 400 else 100 for step in range(600)]
    limit = HitLimit(3, epsilon=0.2)
    answers = PayForChange(TargetCharging(stream, limit, noise=SecretNoise(bytes(32))), prior=False)

    def busy(step):
        return exponential_choice((False, True), lambda users: [0, users[step] - 500], epsilon=0.2)

    assert [answers.ask(busy(step)) for step in range(600)] == [200 <= step < 400 for step in range(600)]
    assert limit.used == 2
