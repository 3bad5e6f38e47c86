"""The audit of release mode `names`, where users pay for looks. Each module imports only those above it.

- `noise_law`: the law of the noise, by quadrature.
- `mechanism`: what a plan runs, and what it claims.
- `look_law`: what one look shows about one user, at the worst count.
- `few_looks`: the best adaptive adversary of one, two or three looks.
- `exact`: what the worst streams attain, against the claim.
- `scenes`: streams for the real code, and the exact law of what they show.
- `hand_over`: what users and items carry from window to window of a stream, as a real run stores it.
- `copies`: many copies of a scene through the real code.
- `exclusion`: users who have no hits left.
- `counted`: counts, their noise and whom they count.
- `payments`: what the real code lets users pay.
- `sampled`: a lower bound on epsilon, and a test of all that the real code publishes.
"""
