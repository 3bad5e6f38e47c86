"""A run over many nights: its state, which is what one part of it hands to the next, in one private file; its noise
key; and `ledger`, a package: which runs drew on whose budget.

A run covers the whole declared range of a plan. It may be taken in parts, one after the other: each covers the windows
``first .. end - 1``, where ``first`` is the end of the part before. What windows pass on to later ones travels in a
state file: what each user has left, what is known, how far the run is closed, and which run it is.

    lifetime_cost  what runs of plans cost together, for ever, in whole numbers; the filter that the ledger keeps to
    records        what a ledger is asked, stores and answers; what a part is to its run, and why it is refused
    state_header   StateHeader, PartRecord: which run, how far, what was meant to be published next
    judge          may this part run? By the state, and by the ledger
    state_cells    Kind: what users and items carry on; split by bucket, joined, so that parts and shards do not matter
    state_file     StateFile: the container, checked; write_state: a new one, in one step; hold_state: one at a time
    fingerprints   the noise key in its file; fingerprints of it, of the files of a log, and of a part, by which its
                   noise is its own; the key that seals states
    run_part       RunPart: the windows of a part and the state before them, as workers need it

Guarantee: what a range publishes that is taken in parts has the law of what it publishes in one part
(docs/guarantee.md, "Streams and parts": a window is a function of its events, of the keys and of what earlier windows
pass on). So all parts of a run together cost what the plan says, once. Condition: each window is taken once, with one
input. The state refuses what would break it. Who goes back to an older copy of the file is refused by a ledger; without
one each time costs the plan's price once more ("What a run is"). Nobody makes another state without the noise key: each
is sealed with it.

Users are keyed hashes here, and the key is not in the file. Items are labels: those that were named lately, and with
prices for hits also those that were near it. So the file is as private as the log.

Nothing here imports Beam.
"""
