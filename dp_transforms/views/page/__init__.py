"""A report and a plan for the browser, and pictures as files. Nothing here reads more than what was released.

- report_columns: a report as compact columns, and the titles of its items (--titles).
- promise: the guarantee, what it covers and what not, in plain sentences; whether a report and its plan agree.
- report_page: ``shh show --html``, ``shh explain --html``. Its HTML is all escaped.
- picture: ``shh show --chart``, as SVG.
- assets: template, style and scripts of the page. columns.js reads the columns, strips.js draws items over time, and
  page.js is what a reader sees and does.

Page and picture use no library: both draw rectangles, and a page can be mailed. Rules that both need (what changes are,
which windows share a column, where ticks stand) are written twice, and tests hold them together.
"""
