"""What the pipeline draws and decides with; knows no Beam and no accounting.

randomness          keyed functions: identities, choices and uniforms, all from one secret
discrete_laplace    exact inversion of 128-bit uniforms, in one stage, in two, or wide
release_rule        what a noisy count leads to; release mode ``counts``
between_thresholds  release mode ``labels``: names of heavy items, charged only near the threshold

`papers` is a library beside it: the papers' mechanisms, each to be used alone. The pipeline runs none of them.
"""
