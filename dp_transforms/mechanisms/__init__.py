"""The laws of the noise; the pipeline's randomness, noise and release rules. Imports no Beam and no accounting.

discrete_laplace_law  the law of the noise where users pay for hits, in whole numbers of 2^-128
exponential_power   the law of the noise where users pay for looks (docs/purse.md)
priced_weights      the weights that users may have there, and what each costs

randomness          keyed functions: identities, choices and uniforms, all from one secret
discrete_laplace    exact inversion of 128-bit uniforms, in one stage, in two, or wide
noise_table         integer noise of any symmetric log-concave law, in one stage or in two; release mode ``names``
noise_bounds        the draws of a noise table from bounds in floats, without the table
release_rule        what a noisy count leads to; release mode ``counts``
between_thresholds  release mode ``labels``: names of heavy items, charged only near the threshold

`papers` is a library of the papers' mechanisms, each used alone. The pipeline runs none of them: the algorithm of a
release mode is in `monitor.heavy_hitter_monitor`, not in `papers.threshold_monitor`.
"""
