"""Mechanisms of the papers, each usable alone on plain numbers and numpy arrays. The pipeline runs none of them.

Shared by all:
noise_source        where randomness comes from: exact draws from a secret key
query               the one definition of a query: integers on a grid, and how much one user changes them
exponential_mechanism  one candidate of many, the likelier the higher its whole score
halting             what a mechanism does that has given all it may give
sparse_vector       AboveThreshold, Sparse and NumericSparse: which queries of a stream are above a threshold
threshold_monitor   ThresholdMonitor and ThresholdMonitorEvolving: tests that never halt; users pay only for "top"
individual_charging  the same with one noise and published values: the sparse vector technique charged to users
user_counters       what each user has paid, and who still counts: the counters of these two

Linear queries, many at once:
multiplicative_weights  online, one query after the other, and offline, for a known set: a distribution that learns
small_database      SmallDB: a database of a few records that answers a known set of queries
marginals           k-way marginals as linear queries
synthetic_data      the distribution that these publish, and how it learns
private_computation what target charging runs: noisy answers, tests and zones, and their targets
target_charging     many private computations, of which only those are paid for that hit their target
conditional_release one private draw that is kept, and published once its condition holds
selection           the best k of many private results, each candidate run once, for the price of k
boundary_wrapper    private classifiers that pay only where they are unsure
"""
