"""What is declared of a run: its windows, and a budget as noise, thresholds and prices; nothing of it is made from a
log.

Read `plan` and `records` first. Each module below imports only those above it.

- `window_schedule`: `WindowSchedule`, the declared windows.
- `stored`: records as JSON and back, and their schema, from the annotations of their fields alone.
- `records`: what a plan is made of; a choice that was not made has no record.
- `plan_checks`: whether a plan keeps its promise; asked whenever one is built or read.
- `rounds`: looks in rounds: their purses, thresholds and stated sizes.
- `calibration`: the search for the records of a plan.
- `plan`: `Plan`; calibrates it, and reads it as hostile input.
- `charges`: plans by the name of what users pay for.
- `lifetime_cost`: what runs of plans cost together, for ever, in whole numbers; the filter that the ledger keeps to.

A new choice touches its record, its calibration and its option (`cli.plan_options`). docs/plan.schema.json, which says
what each field means, is made from the docstrings of the records.
"""
