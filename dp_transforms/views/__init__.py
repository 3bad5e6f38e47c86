"""What people look at: reports, plans and ledgers, in words, as tables for the terminal, and as pages for the browser.

- report_words: a report as a table, what its signs mean, and labels that cannot mislead, times of a zone.
- plan_words, plan_tables: a plan in a sentence, and its numbers.
- ledger_tables: budgets and runs.
- page: a package; a report for the browser.

Reads released values, plans and ledgers, never a log.
"""
