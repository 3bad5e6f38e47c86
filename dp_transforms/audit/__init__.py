"""Checks of a plan's claim against what its mechanism does: exact, and by running the real code. Imports no Beam.

Each module imports only those above it. docs/audit.md says what is computed, why it is a lower bound, and what it
cannot show.

- `query_law`: what one query shows about one user: its possible results, with exact probabilities in both worlds.
- `adversary`: the best adaptive adversary, by dynamic programming over (hits, privacy loss).
- `attack_streams`: concrete input streams, simple enough to be run, and the exact law of all that is published of them.
- `claim`: the mechanism that a plan runs, and what the plan claims.
- `worst_streams`: the search for the streams that show most.
- `exact`: what the worst of them attain, against the claim.
- `statistics`: bounds and tests for counts of independent runs.
- `names`: the same for release mode `names`, a package of its own.
- `worker_settings`: what workers get of a plan, field by field.
- `sampled`: many copies of such a stream through the real monitor: a lower bound on epsilon, and a test of its noise.
"""
