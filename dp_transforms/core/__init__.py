"""The streaming core on numpy columns: from events to named items, window after window. Imports no Beam, no accounting.

planned_run            a run of a plan: what workers get
operator_counts        what is counted for the operator

Noise, and what decides:

randomness             keyed functions: identities, choices and uniforms, all from one secret
noise_table            exact inversion of 128-bit uniforms by a table of tails, and the same draws from bounds in floats
release_rule           what a noisy count leads to: the rule of each mode

Tables:

event_ids              what an id is; one label of several fields
public_items           the items of a run, where they are known and public; in a worker by keyed hash
event_batch            events as columns: user, item, time
messages               what travels: arrays as bytes and back; messages gathered by counting, until all are there
tables                 tables from a schema: packed, merged, selected, cut by window and by shard
equal_rows             groups of equal rows in sorted columns
item_table             keyed 128-bit hashes of items and their labels
contributions          which items each user holds in each window: from events; which of them count
pack_contributions     events -> the same, packed, by window and shard of users
item_sums              the same by window and item: an item in a window, with its holders or a sum
named_items            what was named, and what is published of it
window_report          the released types

Users pay for hits:

query_noise            the noise of one count in each mode of hits, in two stages; the rule that its plan has
contribution_counters  hits paid by each user that was ever charged, and by the holders of some candidates
heavy_hitter_monitor   the parallel front, which finds candidates; the sequential stage: one window after the other,
                       test, charge, exclude, report

Users pay for each test of a contribution:

user_budgets      the weights of a stream, from each user's own pace, and what it has left
round_candidates  in rounds: what a round draws for, a function of what was named before
round_namer       in rounds: from sums to what each round names; second looks, for their sizes
followed_items    known items, which were named lately; followed down to their lower threshold
item_namer        the thresholds: from sums to named items; the items of a known domain that nobody holds

Steps, which every driver runs:

stage             what a stage is; `AtOnceStep`, which runs one on groups of bounded input
users             the first: what users hold -> what they add to each item, out of a bound, or evenly out of a purse;
                  the second: what all users add to an item -> what is named, or may be
rounds            the first two where looks come in rounds: run again for each, on what was named before
release_stages    which stages a run has, by what its users pay for
run_part          a part of a run, and the state before it
state_chunks      what is stored of a state
"""
