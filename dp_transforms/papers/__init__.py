"""Mechanisms of the papers: a library. Each is used alone, on plain numbers and numpy arrays.

The pipeline runs none of them. It has code of its own, on columns and with keyed noise: wherever users pay for hits,
`core.heavy_hitter_monitor`, in ``ThresholdMonitorEvolvingDoFn``. With the noise as printed that is the algorithm of
`threshold_monitor` here (tests/beam/test_threshold_monitor_as_printed.py runs the two side by side), with counts that
of `individual_charging`, else the latter with a zone.

Prices are in `dp_transforms.accounting`: `charging_game`, `kms21_accountant`; for calls of several kinds, in
`mixed_charging` here. docs/proofs.md lists every algorithm and theorem of the papers, and has proofs.

Shared by all:
noise_source        where randomness comes from: exact draws from a secret key; the exception of one that has halted
query               the one definition of a query: integers on a grid, and how much one user changes them; marginals
exponential_mechanism  one candidate of many, the likelier the higher its whole score
sparse_vector       AboveThreshold, Sparse and NumericSparse: which queries of a stream are above a threshold
threshold_monitor   ThresholdMonitor and ThresholdMonitorEvolving: tests that never halt; users pay only for "top"
individual_charging  the same with one noise and published values: the sparse vector technique charged to users

Linear queries, many at once:
multiplicative_weights  online, one query after the other, and offline, for a known set: a distribution that learns
synthetic_data      the distribution that these publish, and how it learns; SmallDB, a database of a few records

Target charging:
private_computation what it runs: noisy answers, tests and zones, classifiers that pay where they are unsure; targets
target_charging     many private computations; only those whose result hits its target are paid for. A private draw that
                    is kept until its condition holds; the best k of many private results for the price of k
mixed_charging      the limit and the price of calls of several kinds, chosen as one goes
pate                labels by the votes of private teachers, charged in three ways
pay_for_change      answers about a stream, paid for only when they change
distinct_count      distinct counts by a sketch whose own hash makes it private
"""
