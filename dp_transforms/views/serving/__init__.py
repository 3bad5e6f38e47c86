"""``shh serve``: a live page of a report, or of a ledger. Needs Starlette and uvicorn (the extra ``serve``).

- live_view: what browsers get: a page, and messages for those that have it.
- report_source: a folder or a topic of ``shh stream``, or a report file, read again and again for what is new.
- live_report: a page of the windows so far, made of the parts of `views.page`, and a message for each window since.
- live_ledger: a page of budgets and runs, for the operator, and a message once they have changed.
- access: who may ask: the token, the names under which the server is reached.
- connections: the HTTP server; how long a peer may take to ask or to read, and how many are connected.
- web_app: pages, files and events over HTTP. Numbers of the engine, which `cli` asks for, are beside the report and
  never part of it: they are not released values.
"""
