"""Budget in, plain numbers out: `dp_transforms.plan` is made of them. Knows of the mechanisms only the laws of their
noise.

Each module below imports only those above it.

Noise and accountants:

- `composition`: `Accountant`, the interface of all objects that know a price: delta(epsilon) and epsilon(delta); basic,
  advanced and optimal composition, and the solver.
- `charging_game`: the game accountant of target charging, tight, with or without a participation cap; and what is
  charged in each mode.
- `kms21_accountant`: the explicit constants of [KMS21]: the noise of mode `kms21` for a budget, and its price.

From a budget to the noise:

- `release_modes`: what each mode needs, with its accountant: one object for each mode; the noise of one count.
- `calibration`: the noise, the threshold and the shares of delta for a budget.
- `purse`: a package; looks paid from a purse, at one Renyi order. For mode `looks`. What a look costs is in
  its `look_prices`, and the list of a plan in its `price_list`.

The proofs are in docs/guarantee.md. [CL23] is Cohen, Lyu, "The Target-Charging Technique for Privacy Analysis across
Interactive Computations" (2023); [KOV15] Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy".
"""
