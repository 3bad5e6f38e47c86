"""The command ``shh``. Each subcommand has a module of its name.

- main: the entrance of the command. subcommands: runs the module of each subcommand, errors in one line; ``--config``.
- plan: ``shh plan``. plan_from_log: its ``--from-log``, how active users are.
- audit: ``shh audit``. audit_report, audit_hits_report, audit_looks_report: how its result is shown.
- replay: ``shh replay``. replay_request: all that it is asked for. replay_runs: its runs, with their progress.
  replay_run: its pipeline. home_workers: its worker processes and its memory.
- replay_engine, cluster_replay: where a replay runs; one on a cluster. flink_replay, flink_start, flink_progress,
  dataflow_replay: what each cluster has of its own.
- show: ``shh show``, its pages and charts. explain: ``shh explain``. load: ``shh load``. What is shown:
  `dp_transforms.views`.
- doctor, log_look, field_roles, look_words: ``shh doctor``, a look at a log; what is found in it, which field may be
  the user, and in words.
- ledger: ``shh ledger``. simulate: ``shh simulate``. completion: ``shh completion``.
- serve, listening, operator_numbers: ``shh serve``, a live page of the same parts; the server; the engine's numbers.
- stream: ``shh stream``, by the modules of the next two groups.

What a stream needs before it runs:

- stream_options: its options. stream_rules, engine_choice: which ones need or exclude each other; which engine runs it.
- stream_request: from the options to all that a run needs. stop_file: where its stop file is.
- stream_ports: a check of the ports that others can reach.
- stream_pubsub: Pub/Sub as input.

A stream that runs:

- stream_run: builds the stream pipeline (`build_pipeline`), starts it, watches it or leaves it.
- stream_engine: starts the engine. stream_job: the job in a thread, and how it is cancelled.
- stream_watch: watches a run to its end, by flink_watch (what Flink says) and sink_watch (what the output holds).
- stream_metrics: the numbers for the operator, for Prometheus.
- stream_status: what a person sees of a run. stop_signals: Ctrl-C and SIGTERM, counted.

What several share:

- options, plan_options, state_options: what options are made of, and those of several commands; those that define a
  plan; those of a part of a run, and where a run is accounted for.
- state_part, ledger_account: a part of a run, and what an account of runs hears of it; that of a ledger.
- output_file, table_output: files that appear whole or not at all; tables of databases as outputs.
- pipeline_errors: errors of a pipeline in one line; what Beam prints is kept from the terminal.
- exit_signals: Ctrl-C and SIGTERM end a command at once.
- operator_log: what the operator is told on stderr, as text or JSON.

Beside the command:

- demo, demo_flink, demo_stream: ``make demo`` and so on. simulated_stream: what they need.
- job_words: options that pipelines/replay_log.py and pipelines/live_stream.py share.
"""
