"""What is declared of a run: its windows, and a budget as noise, thresholds and prices; nothing of it is made from a
log.

Read `release_plan` first. Each module below imports only those above it.

- `window_schedule`: `WindowSchedule`, the declared windows.
- `plan_checks`: what the fields of a plan must satisfy.
- `plan_json`: a plan as JSON text and back, read as hostile input; its fingerprint.
- `release_plan`: `ReleasePlan`, what all plans share; calibrates and reads each kind.
- `names_calibration`: the search for a plan of names.
- `charging_plan`, `names_plan`: the two kinds, frozen and checked.
- `other_methods`: from how many users on the methods of others find an item, to compare.
- `declared_plan`: from plain values to a plan.
- `lifetime_cost`: what runs of plans cost together, for ever, in whole numbers; the filter that the ledger keeps to.
"""
