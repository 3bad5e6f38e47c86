"""A report and a plan for the browser. Nothing here reads more than what was released.

- report_columns: a report as compact columns, and the titles of its items (--titles).
- promise: the guarantee, what it covers and what not, in plain sentences; whether a report and its plan agree.
- report_page: ``shh show --html``, ``shh explain --html``. Its HTML is all escaped.
- assets: template, style and scripts of the page. columns.js reads the columns, strips.js draws items over time, and
  page.js is what a reader sees and does.

A page uses no library: it draws rectangles, and can be mailed. Rules that tables need too (what changes are, how times
are written) are written twice, and tests hold them together.
"""
