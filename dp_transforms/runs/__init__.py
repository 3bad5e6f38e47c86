"""What a run is charged, how far it is, and what one part of it hands to the next.

A run covers the whole declared range of a plan. It may be taken in parts, one after the other: each covers the windows
``first .. end - 1``, where ``first`` is the end of the part before. What windows pass on to later ones travels in a
state file: what each user has left, and what is followed.

    lifetime_cost  what runs of plans cost together, for ever, in whole numbers; the filter that the ledger keeps to
    records        what a ledger is asked, stores and answers; errors
    judge          whether a part may run: one state machine, as a table
    ledger_file    SQLite: transactions on records, and which process has a part
    ledger         Ledger: reserve, start, publishing, finish; what is left, and what is wrong
    state_file     the state: a sealed container, written once by each part; what workers read of it
    state_part     a part, from the first look at its state to the new one in its place
    fingerprints   the noise key in its file; fingerprints of it and of the files of a log; the key that seals states

Guarantee: what a range publishes that is taken in parts has the law of what it publishes in one part
(docs/guarantee.md, "Streams and parts": a window is a function of its events, of the keys and of what earlier windows
pass on). So all parts of a run together cost what the plan says, once. Condition: each window is taken once, with one
input; the ledger, that of its population or one of its own beside the state, refuses what would break it. Who goes back
to older copies of both state and ledger has run once more ("What a run is"). Nobody makes another state without the
noise key: each is sealed with it.

In a state file users are keyed hashes, without the key; the items that are followed are labels. So the file is as
private as the log.

Nothing here imports Beam.
"""
