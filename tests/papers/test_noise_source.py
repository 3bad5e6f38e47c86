"""`SecretNoise`: exact draws from a key. Statistical tests reject a correct source with probability 1e-6 each over the
key (fixed here), and have a twin that they must reject."""

import collections
import copy
import functools
import itertools
import math
import os
import pickle
import threading
import time
import warnings

import numpy as np
import pytest

from dp_transforms.core.randomness import BlockFunction, derive_key
from dp_transforms.papers.noise_source import SecretNoise
from tests.helpers.sampling_checks import laplace_rejects

KEY = bytes(range(32))
WIDE = 1 / 1000  # drawn from two short tables


class FixedUniforms(SecretNoise):
    """Hands out the uniforms it is given, as 128-bit integers."""

    def __init__(self, *uniforms):
        super().__init__(KEY)
        self._given = iter(uniforms)

    def uniforms(self, count):
        return np.array([divmod(next(self._given), 1 << 64) for _ in range(count)], dtype=np.uint64).reshape(-1, 2)


def some_of_each(noise):
    return [
        *(noise.discrete_laplace(0.1) for _ in range(100)),
        *(noise.discrete_laplace(WIDE) for _ in range(100)),
        *(noise.bernoulli(0.5) for _ in range(50)),
        *(noise.choose([3, 0, 5]) for _ in range(50)),
        *noise.uniforms(10).ravel().tolist(),
    ]


@pytest.mark.parametrize("key", [KEY, b"\xff" * 48])
def test_draws_are_aes_in_counter_mode_under_the_key(key):
    """Block number n, by whichever call: none comes twice, and none without the key."""
    source = SecretNoise(key)
    found = np.concatenate([source.uniforms(count) for count in (3, 0, 1, 260)])
    counters = np.stack([np.arange(264), np.zeros(264)], axis=1).astype(np.uint64)
    assert np.array_equal(found, BlockFunction(derive_key(key, "draws in order"))(counters))


@pytest.mark.parametrize("limit", [2**128, 2**128 + 1, 3 * 2**127, 2**300 - 1])
def test_whole_numbers_below_a_large_limit_are_the_first_bits_of_their_blocks(limit):
    """Each try takes as many blocks as hold the bits of ``limit - 1``, and is thrown away where it is not below."""
    bits = (limit - 1).bit_length()
    blocks = math.ceil(bits / 128)
    words = SecretNoise(KEY).uniforms(600 * blocks).reshape(600, 2 * blocks).tolist()
    tries = (functools.reduce(lambda value, word: value << 64 | word, of_one) for of_one in words)
    below = (value for tried in tries if (value := tried >> (128 * blocks - bits)) < limit)
    source = SecretNoise(KEY)
    assert [source._uniform_below(limit) for _ in range(50)] == list(itertools.islice(below, 50))


def test_no_uniform_is_used_twice():
    """By draws of every kind, in blocks of every size."""
    given = []

    class Recorded(SecretNoise):
        def uniforms(self, count):
            rows = super().uniforms(count)
            given.extend(tuple(row) for row in rows.tolist())
            return rows

    noise = Recorded(KEY)
    for count in (1, 5, 0, 300):
        noise.uniforms(count)
        some_of_each(noise)
    assert len(set(given)) == len(given) > 1500
    assert given == [tuple(row) for row in SecretNoise(KEY).uniforms(len(given)).tolist()], "and none is left out"


DRAWS = [
    lambda noise: noise.uniforms(1),
    lambda noise: noise.discrete_laplace(0.5),
    lambda noise: noise.discrete_laplace_array(0.5, 1),
    lambda noise: noise.bernoulli(0.5),
    lambda noise: noise.choose([1, 1]),
]


@pytest.mark.parametrize("key", [None, KEY])
def test_the_child_of_a_fork_does_not_repeat_the_draws_of_its_parent(key):
    noise = SecretNoise(key)
    noise.discrete_laplace(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other threads are there, of which the child uses none
        child = os.fork()
    if not child:
        refused = 0
        try:
            for draw in DRAWS:
                try:
                    draw(noise)
                except RuntimeError as error:
                    refused += "made by another process" in str(error)
            SecretNoise().uniforms(1)  # one of its own
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(DRAWS)
    for draw in DRAWS:
        draw(noise)


@pytest.mark.parametrize("repeat", [copy.copy, copy.deepcopy, pickle.dumps, lambda noise: copy.deepcopy([noise])])
def test_a_source_cannot_be_copied(repeat):
    with pytest.raises(TypeError, match="Make a new one"):
        repeat(SecretNoise(KEY))


class Interrupted(SecretNoise):
    """Another thread comes in wherever the counter has been read."""

    @property
    def _next_block(self):
        counter = self.__dict__["counter"]
        time.sleep(1e-4)
        return counter

    @_next_block.setter
    def _next_block(self, value):
        self.__dict__["counter"] = value


@pytest.mark.parametrize(
    "draw", [lambda noise: tuple(noise.uniforms(1)[0].tolist()), lambda n: n.discrete_laplace(WIDE)]
)
def test_threads_share_the_draws_among_them(draw):
    noise, alone, threads, each = Interrupted(KEY), SecretNoise(KEY), 4, 60
    drawn = []
    workers = [
        threading.Thread(target=lambda: drawn.extend([draw(noise) for _ in range(each)])) for _ in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert collections.Counter(drawn) == collections.Counter(draw(alone) for _ in range(threads * each))


@pytest.mark.parametrize("epsilon", [2.0, 0.1, 0.0099])
def test_draws_follow_the_exact_distribution(epsilon):
    draws = SecretNoise(KEY).discrete_laplace_array(epsilon, 300_000)
    assert not laplace_rejects(draws, epsilon)
    assert laplace_rejects(draws, epsilon * 1.05)


@pytest.mark.parametrize("probability", [0.5, 0.1, 1 / 3, 2.0**-60, 1 - 2.0**-53])
def test_a_bernoulli_draw_is_true_for_exactly_that_share_of_all_uniforms(probability):
    """The one place where it changes from true to false."""
    numerator, denominator = probability.as_integer_ratio()
    edge, rest = divmod(numerator << 128, denominator)
    assert rest == 0, "these are multiples of 2^-128"
    assert FixedUniforms(edge - 1).bernoulli(probability) is True
    assert FixedUniforms(edge).bernoulli(probability) is False


def test_a_choice_takes_every_position_for_its_share_of_all_uniforms():
    """Eight weights in total, so the three leading bits decide; with six it draws again rather than favour some."""
    chosen = [FixedUniforms(leading << 125 | 12345).choose([3, 0, 1, 4]) for leading in range(8)]
    assert chosen == [0, 0, 0, 2, 3, 3, 3, 3]
    assert FixedUniforms(7 << 125, 6 << 125, 4 << 125).choose([1, 1, 1, 1, 1, 1]) == 4
