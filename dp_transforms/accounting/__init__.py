"""A budget into plain numbers: `dp_transforms.plan` is made of them. Each module imports only those above it.

Laws of noise: `discrete_laplace_law`, `exponential_power`. `accountants`: their solver, and the shares of delta that
noise does not need.

- **Hits**: `charging_game`, the price of target charging; `kms21_accountant`, that of [KMS21] as printed;
  `charged_hits`, the ways to charge hits, and the least noise and the threshold of each.
- **Contributions**: `price_bounds`, what a test with a weight costs at most; `priced_weights`, how the weight that one
  can pay is found; `price_list`, the weights of a run, its threshold and its sizes; `paid_tests`, the numbers that find
  most for a budget.

The proofs are in docs/guarantee.md and docs/proofs.md. [CL23] is Cohen, Lyu, "The Target-Charging Technique for Privacy
Analysis across Interactive Computations" (2023); [KOV15] Kairouz, Oh, Viswanath, "The Composition Theorem for
Differential Privacy"; [KMS21] Kaplan, Mansour, Stemmer, "The Sparse Vector Technique, Revisited".
"""
