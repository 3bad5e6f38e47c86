"""A replay on this machine, without an engine. Nothing here imports Beam.

    replay              the driver: reads, groups, runs the steps of `core`, and hands back the reports
    pool                who does the steps: this process, or workers beside it; where packed columns lie between two
                        steps: in memory, or on disk. libraries: what workers load
    machine             how many processes, how much memory, in how many parts
    replay_table        `replay`: the same for a table in memory, by one call

A worker knows no file, no key and no plan but by messages of the process that started it; it ends with that process.
The DoFns of `beam` run the same steps on clusters (`dp_transforms.core`).
"""
