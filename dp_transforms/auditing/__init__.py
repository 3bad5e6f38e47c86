"""Checks of a plan's claim against what its mechanism does: exact, and by running the real code. Knows no Beam.

Read in this order; docs/audit.md says what is computed, why it is a lower bound, and what it cannot show.

- `query_law`: what one query shows about one user: its possible results, with exact probabilities in both worlds.
- `adversary`: the best adaptive adversary, by dynamic programming over (hits, privacy loss).
- `streams`: concrete streams, simple enough to be run, and the exact law of all that they publish.
- `exact`: what the worst of them attains, against the claim of a plan.
- `sampled`: many copies of such a stream through the real monitor: a lower bound on epsilon, and a test of its noise.
- `statistics`: the bounds and tests that `sampled` uses.
"""
