"""A test draws the same bytes in each run, and others than its neighbours."""

from __future__ import annotations

import os
import secrets
import uuid

import pytest

from tests.helpers import forked
from tests.helpers.named_randomness import IS_FRESH, NamedRandomness


def test_draws_are_a_function_of_the_name_and_the_draws_before() -> None:
    randomness = NamedRandomness()
    drawn = []
    for name in ("one", "one", "two"):
        with randomness.of(name):
            drawn.append([randomness(8), randomness(8)])
    assert drawn[0] == drawn[1]
    assert len({each for pair in drawn for each in pair}) == 4


def test_what_is_drawn_inside_leaves_the_stream_outside_as_it_was() -> None:
    randomness, same = NamedRandomness(), NamedRandomness()
    before = randomness(8)
    with randomness.of("inside"):
        randomness(8)
    assert [before, randomness(8)] == [same(8), same(8)]


@pytest.mark.skipif(IS_FRESH, reason="SHH_FRESH_RANDOMNESS is set")
def test_keys_and_tokens_of_this_test_are_always_these() -> None:
    drawn = [os.urandom(4).hex(), secrets.token_hex(4), str(uuid.uuid4())[:8]]
    assert drawn == ["d909fd98", "77ce88c8", "b1f12368"]


def test_what_other_functions_draw_changes_nothing() -> None:
    randomness, same = NamedRandomness(), NamedRandomness()

    def other() -> bytes:
        return randomness(8)

    assert other() != randomness(8) == same(8)


@pytest.mark.skipif(IS_FRESH or not forked.CAN_FORK, reason="SHH_FRESH_RANDOMNESS is set, or the system cannot fork")
def test_processes_of_the_fork_server_draw_so_too() -> None:
    program = "import secrets; print(secrets.token_hex(4))"
    drawn = [forked.run_python("-c", program).stdout.strip() for _ in range(2)]
    assert drawn == ["5a7722d0", "56491ee0"]


def test_a_forked_process_draws_other_bytes() -> None:
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.write(writes, os.urandom(16))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reads, 16) != os.urandom(16)
