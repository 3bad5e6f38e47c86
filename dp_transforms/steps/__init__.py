"""Steps of a replay as pure functions of one element, which run anywhere: here, or in a worker process.

    step          what a step is
    pack_pairs    events -> packed pairs (user, item) by window and shard
    read_pairs    chunks of a log -> their packed pairs, and the rows that cannot be read
    reading_step  from a plan to that step: what the process that starts the others does
    groups        packed groups -> packed groups: the heavy steps between the reading and the reports
    all_steps     imports all of them

The DoFns of `beam` run the same functions on clusters. Nothing here imports Beam.
"""
