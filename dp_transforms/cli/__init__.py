"""The command ``shh``. Each subcommand has a module of its name.

- main: the entrance of the command. subcommands: runs the module of each subcommand, errors in one line.
- plan: ``shh plan``. audit, audit_report, audit_hits_report, audit_looks_report: ``shh audit`` and how its result is
  shown, in all release modes and in each.
- plan_from_log: ``shh plan --from-log``, how active users are.
- replay, replay_run, replay_progress: ``shh replay``, its pipeline, its progress bar.
- replay_engine, cluster_replay: where a replay runs; one on a cluster. flink_replay, flink_start, flink_progress,
  dataflow_replay: what each cluster has of its own. noise_key_secret: a key that workers fetch.
- show, show_pictures: ``shh show``, its pages and charts. explain: ``shh explain``. What is shown:
  `dp_transforms.views`.
- doctor, log_look, field_roles, look_words: ``shh doctor``, a look at a log; what is found in it, which field may be
  the user, and in words.
- serve, listening, operator_numbers: ``shh serve``, a live page of the same parts; the server; the engine's numbers.
- load: ``shh load``. table_output: tables of databases as outputs.
- simulate, simulated_log: ``shh simulate`` and the log that it makes.
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

- engine_options: the options of an engine.
- grouped_options: options in groups, for the short help and for ``--help-all``.
- options, plan_options, event_options, ledger_options: types of parameters; the options that define a plan; the fields
  of events; where a run is accounted for.
- output_file, standard_output: files that appear whole or not at all; errors of standard output.
- pipeline_errors, quiet_workers: errors of a pipeline in one line; what Beam prints is kept from the terminal.
- exit_signals: Ctrl-C and SIGTERM end a command at once.
- operator_log: what the operator is told on stderr, as text or JSON. config_file: ``--config``, options in a TOML file.
- completion: ``shh completion``.

Beside the command:

- demo, demo_flink, demo_stream: ``make demo`` and so on. demo_processes, simulated_stream: what they need.
- job_words: options that pipelines/replay_log.py and pipelines/live_stream.py share.
"""
