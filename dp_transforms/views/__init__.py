"""What people look at: reports, plans and ledgers, in words, as tables for the terminal, and as pages for the browser.

- report_table: a report as a table, and what its signs mean. run_words: how a run ended. time_axis: times of a zone.
- plan_words, plan_tables: a plan in a sentence, and its numbers. plan_comparison, plan_choices: beside other methods
  and other numbers of hits. plan_chart, line_plot: its chart.
- ledger_tables: budgets and runs.
- page: a package; a report and a plan for the browser, the fact sheet, charts as files.
- serving: a package; the live page of ``shh serve``.

Reads released values, plans and ledgers, never a log.
"""
