"""Keyed draws per second: the block function and the exact inversion of the discrete Laplace distribution."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from benchmarks.report import Figure

_EPSILON_PER_QUERY, _THRESHOLD = 0.0568745, 490  # epsilon 2, delta 1e-9, 3 hits, 384 windows


def run(*, quick: bool = False) -> list[Figure]:
    import numpy as np

    from dp_transforms.mechanisms.noise_table import discrete_laplace
    from dp_transforms.mechanisms.randomness import StreamKeys

    rows, rounds = (100_000, 3) if quick else (1_000_000, 7)
    keys = StreamKeys(secrets.token_bytes(32), run_id="bench", plan_fingerprint="", stream="bench", threshold=500)
    noise = discrete_laplace(_EPSILON_PER_QUERY)
    hashes = np.frombuffer(secrets.token_bytes(16 * rows), dtype=np.uint64).reshape(-1, 2)
    digests = np.frombuffer(secrets.token_bytes(16 * rows), dtype=np.uint64).reshape(-1, 2)
    # As in a replay: most items are far below the threshold, and about one in a hundred passes the first stage.
    counts = (np.frombuffer(secrets.token_bytes(8 * rows), dtype=np.uint64) >> np.uint64(11)) / 2**53
    margins = _THRESHOLD - np.minimum(5 / np.maximum(counts, 1e-6), 4 * _THRESHOLD).astype(np.int64)

    def one_stage() -> None:
        noise.sample(keys.noise_uniforms(7).of_pairs(hashes, digests))

    def first_stage() -> None:
        noise.passes(keys.pass_uniforms(7).of_pairs(hashes, digests), margins)

    def second_stage() -> None:
        noise.sample_given_pass(keys.noise_uniforms(7).of_pairs(hashes, digests), margins)

    def both_stages() -> None:
        first_stage()
        second_stage()

    def two_stages() -> None:
        passed = noise.passes(keys.pass_uniforms(7).of_pairs(hashes, digests), margins)
        noise.sample_given_pass(keys.noise_uniforms(7).of_pairs(hashes[passed], digests[passed]), margins[passed])

    def rate(draw: Callable[[], None]) -> float:
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            draw()
            seconds.append(time.perf_counter() - started)
        return rows / min(seconds)

    passing = np.mean(noise.passes(keys.pass_uniforms(7).of_pairs(hashes, digests), margins))
    note = f"{rows:,} at once, best of {rounds}, noise scale {1 / _EPSILON_PER_QUERY:.1f}"
    return [
        Figure("Keyed draws, one stage", rate(one_stage), "draws/s", (">=", 3e6), note),
        Figure("Keyed draws, both stages for every item", rate(both_stages), "draws/s", (">=", 3e6), "never so many"),
        Figure("Keyed draws, as a replay", rate(two_stages), "draws/s", None, f"{passing:.1%} pass the first stage"),
        Figure("First stage alone", rate(first_stage), "draws/s", None, "what every item costs"),
        Figure("Second stage alone", rate(second_stage), "draws/s", None, "what a candidate costs, many at once"),
    ]
