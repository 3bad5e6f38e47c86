"""What is declared of a run: its windows, and a budget as noise, thresholds and prices; nothing of it is made from a
log.

Read `plan` and `records` first. Each module below imports only those above it.

- `window_schedule`: `WindowSchedule`, the declared windows.
- `stored`: records as JSON and back, from the annotations of their fields alone.
- `records`: what a plan is made of; a choice that was not made has no record.
- `rounds`: whether contributions are tested in rounds, and the thresholds and stated sizes of these.
- `calibration`: the search for the records of a plan.
- `check`: whether a plan keeps its promise.
- `plan`: `Plan`; makes it, has it checked, and reads it as hostile input.
"""
