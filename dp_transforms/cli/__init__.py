"""The command ``shh``. Each subcommand has a module of its name.

- main: the entrance of the command. subcommands: runs the module of each subcommand, errors in one line.
- plan, audit, audit_report, audit_tables: ``shh plan``; ``shh audit`` and how its result is shown.
- plan_from_log: ``shh plan --from-log``, how active users are.
- replay, replay_run, replay_progress: ``shh replay``, its pipeline, its progress bar.
- replay_engine, flink_replay: where a replay runs; one on Flink.
- show, show_pictures: ``shh show``, its pages and charts. explain: ``shh explain``. What is shown:
  `dp_transforms.views`.
- doctor, log_look, field_roles, look_words: ``shh doctor``, a look at a log; what is found in it, which field may be
  the user, and in words.
- serve: ``shh serve``, a live page of the same parts.
- load: ``shh load``. table_output: tables of databases as outputs.
- simulate, simulated_log: ``shh simulate`` and the log that it makes.
- stream: ``shh stream``: builds its pipeline, starts it, and watches it or leaves it.

What a stream needs:

- stream_options: its options. stream_rules: which ones need or exclude each other, and where its stop file is.
  stream_request: from the options to all that a run needs.
- stream_state: a stream with ``--state``, as a part of a run.
- stream_watch: watches a run to its end. stream_status: what a person sees of it. stream_metrics: numbers for
  Prometheus.

What several share:

- engine_choice: which engine runs a command, its options, and a check of the ports that others can reach. stream_job:
  starts the engine, and runs the job in a thread. flink_jobs: what Flink is asked about it.
- noise_key_secret: a key that workers fetch.
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
