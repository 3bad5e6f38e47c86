"""Budget in, plain numbers out. Knows no Beam and no mechanism; read `release_plan` first.

- `release_plan`: `ReleasePlan`, the frozen, checked, serialisable result of calibration; how delta was split.
- `calibration`: the noise, the threshold and the shares of delta for a budget.
- `release_modes`, `noise_parameters`: what each release mode asks of a plan; the noise of one query, as plain numbers.
- `accountant`: `Accountant`, the interface of all objects that know a price: delta(epsilon) and epsilon(delta).
- `charging_game`: the game accountant of target charging, tight, the default; with or without a participation cap.
- `target_charging`: the closed form and the exact tail to compare it with, and what is charged in each release mode.
- `threshold_monitor`: the explicit constants of ThresholdMonitor [KMS21]: its noise for a budget, and its price.
- `renyi`: Renyi target charging: the flat charge of a hit at each order, and the conversion by dp_accounting.
- `mixed_charging`: target charging with calls of different epsilon and q, chosen as one goes.
- `plan_json`: what a plan file holds, read as hostile input.
- `composition`: basic, advanced and optimal composition, and the solver.

The proofs are in docs/guarantee.md, those of `mixed_charging` in docs/mixed_charging.md. [CL23] is Cohen, Lyu, "The
Target-Charging Technique for Privacy Analysis across Interactive Computations" (2023); [KOV15] Kairouz, Oh, Viswanath,
"The Composition Theorem for Differential Privacy".
"""
