"""What a run must publish: the slow reference of the whole algorithm, with dicts, loops and plain integers.

It was written from docs/guarantee.md, and shares with the product the keyed functions of `StreamKeys`, the exact tables
of tails of the noise, and records of plans. `run.reference` has all modes; its parts are hits.py, contributions.py with
the budgets of users in budgets.py, and rounds.py.
"""
