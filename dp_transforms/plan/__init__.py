"""What is declared of a run: its windows, and a budget as noise, thresholds and prices; nothing of it is made from a
log.

Read `release_plan` first. Each module below imports only those above it.

- `window_schedule`: `WindowSchedule`, the declared windows.
- `plan_checks`: what the fields of a plan must satisfy.
- `release_plan`: `ReleasePlan`, what all plans share; calibrates each kind, and reads it as hostile input.
- `looks_calibration`: the search for a plan of mode `looks`.
- `hits_plan`, `looks_plan`: the two kinds, frozen and checked.
- `plan_comparison`: from how many users on a plan finds an item, and other modes and the methods of others.
- `lifetime_cost`: what runs of plans cost together, for ever, in whole numbers; the filter that the ledger keeps to.
"""
