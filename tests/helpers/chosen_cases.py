"""Which cases of a test run when: some in `make test`, more in `make test-long`, all others in `make test-nightly`."""

from __future__ import annotations

MANY = 8


def marks_of_case(place: int, count: int, *, is_quick: bool) -> list[str]:
    """The marks of the case at this place, of so many: none for `make test`, ``long`` for `make test-long`, both for
    `make test-nightly`.

    `make test` runs the first of each eight, `make test-long` the fifth. Of a test with fewer than eight cases
    `make test-long` also runs the last one, and all of them if they are quick: a few cases are often as many
    things, of which one alone would show little.
    """
    if place % MANY == 0:
        return []
    is_shown = place % MANY == MANY // 2 or (count < MANY and (is_quick or place == count - 1))
    return ["long"] if is_shown else ["long", "nightly"]
