"""Budget in, plain numbers out: `dp_transforms.plan` is made of them. Knows of the mechanisms only the laws of their
noise.

Each module below imports only those above it.

Noise and accountants:

- `noise_parameters`: the noise of one count, as plain numbers, and the thresholds that it allows.
- `accountant`: `Accountant`, the interface of all objects that know a price: delta(epsilon) and epsilon(delta).
- `composition`: basic, advanced and optimal composition, and the solver.
- `charging_game`: the game accountant of target charging, tight, the default; with or without a participation cap.
- `target_charging`: the closed form and the exact tail to compare it with, and what is charged in each release mode.
- `kms21_accountant`: the explicit constants of [KMS21]: the noise of release mode `kms21` for a budget, and its price.
- `renyi`: Renyi target charging: the flat charge of a hit at each order, and the conversion by dp_accounting.
- `mixed_charging`: target charging with calls of different epsilon and q, chosen as one goes.

From a budget to the noise:

- `target_charging_noise`, `running_epsilon`: the least noise of target charging; how much of epsilon each hit spends.
- `release_modes`: what each release mode needs, with its accountants: one object for each mode.
- `fewest_users`: from how many users on an item is found, where each counts by chance.
- `calibration`: the noise, the threshold and the shares of delta for a budget.
- `activity`: the usual looks of a plan from a histogram of users' activity, and what that costs.
- `purse`: a package; looks and hits paid from one purse, at one Renyi order. For release mode `names`.
- `named_counts`: what counts of named items cost of a purse.

`renyi` and `mixed_charging` are for who calls the papers' mechanisms by hand. No plan needs them.

The proofs are in docs/guarantee.md, those of prices in docs/purse.md, those of `mixed_charging` in
docs/mixed_charging.md. [CL23] is Cohen, Lyu, "The
Target-Charging Technique for Privacy Analysis across Interactive Computations" (2023); [KOV15] Kairouz, Oh, Viswanath,
"The Composition Theorem for Differential Privacy".
"""
