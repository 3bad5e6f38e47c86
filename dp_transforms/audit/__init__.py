"""Checks of a plan's claim against what its mechanism does, all exact: nothing is sampled, no code of a run is run.

tests/audit holds the code of a run against the same laws.

Users pay for hits, or for looks (mode `looks`). Each module imports only those above it. docs/audit.md says
what is computed, why it is a lower bound, and what it cannot show.

- `look_law`: what one look shows about one user who pays for looks, at the worst count; what one query shows about one
  who pays for hits, and the best adversary of many queries.
- `mechanism`: what a plan runs, what it claims, and what workers get of it, field by field.
- `streams`: the streams that show most of users who pay for hits, and the exact law of all that is published of them.
- `few_looks`: the best adaptive adversary of one, two or three looks.
- `round_looks`: what all rounds of looks show together.
- `exact_hits`, `exact_looks`: what the worst streams attain, against the claim.
"""
