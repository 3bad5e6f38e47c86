"""Mechanisms of the papers, each usable alone on plain numbers and numpy arrays; no Beam, no accounting.

randomness          keyed functions: identities, choices and uniforms, all from one secret
discrete_laplace    exact inversion of 128-bit uniforms, in one stage or in two
between_thresholds  release mode ``labels``: names of heavy items, charged only near the threshold
sparse_vector       release mode ``counts``: noisy counts, every report charged
"""
