"""The core: from events to named items, window after window, on numpy columns, without Beam.

A contribution (user, window, item) counts once, however many events it has; a user's weights depend on its own events
and on what was published, and never cost more than one user budget. All weights of an item in a window are added up,
and the item is named if the sum and keyed noise reach a threshold. What was named is public: it is followed, or it is
a candidate of the next round; and where users pay for hits, its holders are charged, one window after the other.

The modules in the order of an event's way:

planned_run            a run of a plan and a part of it: what workers get
randomness             keyed functions: identities, choices and uniforms, all from one secret
event_batch            what an id is; events as columns: user, item, time
columns                columns as bytes and back; groups of equal rows
item_table             keyed 128-bit hashes of items and their labels
tables                 tables from a schema: packed, merged, selected, cut by window and by shard
contributions          which items each user holds in each window; which of them count
pack_contributions     events -> the same, packed, by window and shard of users
stage                  what a step is, how its work is cut, what travels, and how it runs on groups
steps                  users: what they hold -> what they add to each item; items: what all add -> what is named, or may
                       be
two_tests              the same of a stream that tests each contribution twice
stages                 which steps a run has
user_budgets           users pay for tests: the weights of a stream, at each user's pace, and what it has left
item_sums              what users add to an item in a window: one sum, or its holders
noise_table            exact inversion of 128-bit uniforms by a table of tails, and the same draws from bounds in floats
item_namer             sums against thresholds, in one round and in rounds; sizes
public_items           the items of a run, where they are public; which are published although nobody holds them
named_items            what was named, what is published of it, and what is followed: what was named lately
round_candidates       in rounds: what a round draws for, a function of what was named before
hit_noise              users pay for hits: the noise of one count, in two stages, and what a noisy count leads to
heavy_hitter_monitor   the candidates of all windows; then one window after the other: test, charge, exclude, report
contribution_counters  hits paid by each user; what is kept of users for as long as a run lasts
window_report          the released types
state_chunks           what users and items carry from part to part, in chunks that join in any order
operator_counts        what is counted for the operator
"""
