"""Checks of a plan's claim against what its mechanism does, all exact: nothing is sampled, no code of a run is run.

tests/audit holds the code of a run against the same laws.

Users pay for hits, or for tests of contributions. Each module imports only those above it. docs/proofs.md, "The
audit of a plan", says what is computed, why it is a lower bound, and what it cannot show.

- `noise_law`: the noise of a test, and the worst divergence that it shows about one user.
- `hits`: what the best adversary attains, against the claim.
- `contributions`: the price of each weight, the delta of a full budget, and items that one user holds alone.
"""
