"""A report and a plan for the browser, and charts as files. Nothing here reads more than what was released.

- report_columns: a report as compact columns, and the titles of its items (--titles).
- promise: the guarantee, what it covers and what not, in plain sentences; whether a report and its plan agree.
- report_page: ``shh show --html``, ``shh explain --html``. picture: ``shh show --chart``. html_text: HTML, all escaped.
- charts: the specifications of the charts, for Vega-Lite, used by page and picture alike. assets: template, style and
  scripts of the page. library: Vega, Vega-Lite and Vega's interpreter, pinned and with checksums.

**Why Vega-Lite.** It was compared with Observable Plot. Vega 6.2 with Vega-Lite 6.4 and its interpreter has 768 KB.
Plot 0.6 with D3 is smaller (490 KB) and draws heat strips as well, but only into the document of a browser. A chart of
Vega-Lite is JSON: vl-convert-python (the extra ``charts``) makes SVG, PNG and PDF of the same specification with the
same versions, without a browser, so page and picture cannot differ. And Vega can read its expressions as a tree
(``ast``), so the page needs no ``unsafe-eval``.

**Why the library is in git.** A page must be written offline and in a fresh clone, without npm. vl-convert-python could
make the bundle too, but has 84 MB, too much for each worker of a pipeline. `make page-library` makes the same files
again from package-lock.json; SHA256SUMS has their checksums, and `make sbom` lists them.
"""
