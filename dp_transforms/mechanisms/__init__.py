"""The laws of the noise; the pipeline's randomness, noise and release rules. Imports no Beam and no accounting.

discrete_laplace_law  the law of the noise where users pay for hits, in whole numbers of 2^-128
exponential_power   the law of the noise where users pay for looks (docs/guarantee.md, "The noise of contributions")
priced_weights      the weights that users may have there, and what each costs

randomness          keyed functions: identities, choices and uniforms, all from one secret
noise_table         exact inversion of 128-bit uniforms by a table of tails, and the same draws from bounds in floats
release_rule        what a noisy count leads to: the rule of each mode
"""
