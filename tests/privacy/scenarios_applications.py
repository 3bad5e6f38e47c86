"""What [CL23] applies target charging to: private teachers, streams that seldom change, counts by sketches; and faults.

The data are whether the user is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable

from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from dp_transforms.papers.distinct_count import DistinctCount
from dp_transforms.papers.noise_source import NoiseSource
from dp_transforms.papers.pate import TeacherVotes
from dp_transforms.papers.pay_for_change import PayForChange
from dp_transforms.papers.private_computation import PrivateComputation, Target
from dp_transforms.papers.target_charging import ConditionalRelease, Price, TargetCharging
from tests.helpers.charging_game_oracle import capped_game_delta
from tests.privacy.scenarios import Scenario
from tests.privacy.scenarios_target_charging import _LN3, _RESPONSE, Stream, Transcript, _game, _halts, _hits

# ---------------------------------------------------------------------------------------------------------------------
# Private teachers: the user's teacher moves its vote from the first label to the second
# ---------------------------------------------------------------------------------------------------------------------

Call = tuple[PrivateComputation, Target]
_LABELS = ("cat", "dog", "owl")


def _example(*without: int) -> TeacherVotes:
    cat, dog, owl = without
    return TeacherVotes(_LABELS, lambda user: (cat - 1, dog + 1, owl) if user else without, 1.0)


_SURE, _TORN = _example(5, 0, 0), _example(3, 2, 0)


def _teachers(call: Callable[[TeacherVotes, Hashable], Call]) -> Stream:
    """Asks about a hard example again and again, and about a simple one while labels are found."""

    def stream(charging: TargetCharging, transcript: Transcript) -> None:
        last: Hashable = "cat"
        for _ in range(5):
            last = charging.ask(*call(_SURE if last == "dog" else _TORN, last))
            transcript.append(last)

    return stream


def _usual(votes: TeacherVotes, last: Hashable) -> Call:
    return votes.agreed()


def _or_low(votes: TeacherVotes, last: Hashable) -> Call:
    return votes.agreed_or_low(4, test_epsilon=1.0)


def _student(votes: TeacherVotes, last: Hashable) -> Call:
    """A student that always says what the teachers said last."""
    return votes.as_predicted(last)


def _teachers_know(charging: TargetCharging, transcript: Transcript) -> None:
    """Broken: the prior is not what a student has learnt, but the label that most teachers give."""
    votes = _example(3, 3, 0)
    for _ in range(8):
        prior = "dog" if charging._data else "cat"
        transcript.append(charging.ask(*votes.as_predicted(prior)))


def _numbers(call: Callable[[TeacherVotes, Hashable], Call]) -> tuple[float, float]:
    computation, target = call(_TORN, "cat")
    return computation.epsilon, target.probability(computation)


_USUAL_NUMBERS, _LOW_NUMBERS = _numbers(_usual), _numbers(_or_low)
_DRAWN = 1.0, not_prior_probability(1.0)

# ---------------------------------------------------------------------------------------------------------------------
# A stream whose answer seldom changes
# ---------------------------------------------------------------------------------------------------------------------


def _steps(charging: TargetCharging, transcript: Transcript) -> None:
    """A user that is there all the time, and answers that are as far apart with it and without it as may be."""
    answers = PayForChange(charging, prior="up")
    for _ in range(8):
        transcript.append(answers.ask(_RESPONSE))


def _pays_where_the_data_change(charging: TargetCharging, transcript: Transcript) -> None:
    """Broken: the answer to data that stay as they are is drawn anew, for nothing."""
    price = Price(_LN3, not_prior_probability(_LN3))
    for _ in range(8):
        transcript.append(charging.perform(price, _RESPONSE.run, lambda _: 0))


# ---------------------------------------------------------------------------------------------------------------------
# Distinct counts by a sketch
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Sketch(DistinctCount):
    """Of some users and perhaps x'; broken where there are less phantoms, or a lower floor, than epsilon wants."""

    most_phantoms: int = 99
    highest_floor: int = 99

    @property
    def phantoms(self) -> int:
        return min(super().phantoms, self.most_phantoms)

    @property
    def floor(self) -> int:
        return min(super().floor, self.highest_floor)


def _users(others: int) -> Callable[[bool], list[int]]:
    return lambda user: [*range(1, others + 1), *([0] if user else [])]


def _sketch_alone(sketch: DistinctCount) -> Callable[[NoiseSource, bool], Hashable]:
    return lambda noise, with_user: sketch.registers(with_user, noise)


def _counts(charging: TargetCharging, transcript: Transcript) -> None:
    """Two counts, published where they are large; the second one is looked at again."""
    for others in (0, 1):
        held = ConditionalRelease(charging, _Sketch(_users(others), _LN3, buckets=1, levels=3))
        for least in (2, 1)[: others + 1]:
            transcript.append(held.ask(lambda count, least=least: count >= least))
            if transcript[-1] is not None:
                break


_SMALL_STEP = 0.25

SCENARIOS = [
    Scenario(
        "PATE, a boundary",
        "TeacherVotes.agreed, [CL23] 2.7.1 (i)",
        0.3,
        capped_game_delta(*_USUAL_NUMBERS, 1, 5, 0.3),
        _halts(_teachers(_usual), _hits(1, *_USUAL_NUMBERS)),
    ),
    Scenario(
        "PATE, low",
        "TeacherVotes.agreed_or_low, [CL23] 2.7.1 (ii)",
        0.3,
        capped_game_delta(*_LOW_NUMBERS, 1, 5, 0.3),
        _halts(_teachers(_or_low), _hits(1, *_LOW_NUMBERS)),
    ),
    Scenario(
        "PATE, a student's prior",
        "TeacherVotes.as_predicted, [CL23] 2.7.1 (iii)",
        0.3,
        capped_game_delta(*_DRAWN, 2, 5, 0.3),
        _halts(_teachers(_student), _hits(2, *_DRAWN)),
    ),
    Scenario(
        "PATE, the teachers' prior",
        "[CL23] 2.7.1 (iii) with the label of most teachers in the place of a student's",
        3.0,
        _game(*_DRAWN, 1, 3.0),
        _halts(_teachers_know, _hits(1, *_DRAWN)),
        private=False,
    ),
    Scenario(
        "PATE, low for nothing",
        "[CL23] 2.7.1 (ii) whose test does not count for epsilon",
        _USUAL_NUMBERS[0],
        0.0,
        lambda noise, with_user: _example(5, 0, 0).agreed_or_low(5, test_epsilon=4.0)[0].run(with_user, noise),
        private=False,
    ),
    Scenario(
        "pay for change",
        'PayForChange on a stream, [CL23] 2.1, "Pay-only-for-change"',
        1.5 * _LN3,
        _game(_LN3, not_prior_probability(_LN3), 2, 1.5 * _LN3),
        _halts(_steps, _hits(2, _LN3)),
    ),
    Scenario(
        "pay for change, of the data",
        "a new answer is paid only where the data have changed",
        2 * _LN3,
        _game(_LN3, not_prior_probability(_LN3), 1, 2 * _LN3),
        _halts(_pays_where_the_data_change, _hits(1, _LN3)),
        private=False,
    ),
    Scenario(
        "distinct counts by sketches",
        "ConditionalRelease of DistinctCount, [CL23] 2.2 (iv)",
        0.3,
        capped_game_delta(_LN3, not_prior_probability(_LN3), 1, 2, 0.3),
        _halts(_counts, _hits(1, _LN3)),
    ),
    Scenario(
        "sketch, one call",
        'DistinctCount, docs/proofs.md, "Theorem of sketches"',
        _SMALL_STEP,
        0.0,
        _sketch_alone(_Sketch(_users(0), _SMALL_STEP, buckets=1, levels=7)),
    ),
    Scenario(
        "sketch without phantoms",
        "[SST20] without ids that nobody has",
        _LN3,
        0.0,
        _sketch_alone(_Sketch(_users(0), _LN3, buckets=2, levels=3, most_phantoms=0)),
        private=False,
    ),
    Scenario(
        "sketch without a floor",
        "[SST20] without a level that a bucket has at least",
        _SMALL_STEP,
        0.0,
        _sketch_alone(_Sketch(_users(0), _SMALL_STEP, buckets=1, levels=4, highest_floor=1)),
        private=False,
    ),
]
