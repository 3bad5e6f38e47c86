"""Checks of a plan's claim against what its mechanism does: exact, and by running the real code. Imports no Beam.

Users pay for hits, or for looks (mode `looks`). Each module imports only those above it. docs/audit.md says
what is computed, why it is a lower bound, and what it cannot show.

- `query_law`: what one query shows about one user who pays for hits, and the best adversary of many queries.
- `look_law`: what one look shows about one user who pays for looks, at the worst count.
- `mechanism`: what a plan runs, what it claims, and what workers get of it, field by field.
- `trial_plan`: a plan that claims nothing, so that the real code can be run with any numbers.
- `streams`: the streams that show most of users who pay for hits, and the exact law of all that is published of them.
- `few_looks`: the best adaptive adversary of one, two or three looks.
- `round_looks`: what all rounds of looks show together.
- `exact_hits`, `exact_looks`: what the worst streams attain, against the claim.
- `statistics`: bounds and tests for counts of independent runs, and what they say of the real code.
- `scenes`: streams of users who pay for looks, the exact law of what they show, and its tests.
- `round_scenes`: the same of looks in rounds, with the law of what each names.
- `copies`: many copies of a scene through the real code, all at once.
- `payments`: what the real code lets users pay.
- `sampled_hits`, `sampled_looks`: the real code, many times: a lower bound on epsilon, and tests of all it publishes.
"""
