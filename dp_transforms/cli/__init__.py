"""The command ``shh``. Each subcommand has a module of its name.

- main: the entrance of the command. subcommands: runs the module of each subcommand, errors in one line; ``--config``.
- plan: ``shh plan``.
- audit: ``shh audit``. audit_report: how its result is shown.
- replay: ``shh replay``. replay_request: its options and their rules, and all that it is asked for. replay_run: its
  runs, on this machine. replay_on_runner: the same by a runner of Beam.
- show: ``shh show``, its pages. explain: ``shh explain``. What is shown: `dp_transforms.views`.
- doctor: ``shh doctor``, a look at a log. log_sample: some rows of it. log_fields: which field may be user, item, time.
- ledger: ``shh ledger``. simulate: ``shh simulate``.
- stream: ``shh stream``: runs its pipeline, and watches it.

What a stream needs:

- stream_options: its options, and which ones need or exclude each other. stream_request: from the options to all that
  a run needs.
- stream_watch: watches a run to its end. stream_status: what a person sees of it.

What several share:

- options: what the options of a command are made of, one frozen record, and the rules between them. shared_options,
  plan_options: records of several commands: fields of a log, views, a part of a run, and where it is accounted for;
  what defines a plan.
- state_part, run_account: a part of a run, and what a ledger hears of it.
- output_file: files that appear whole or not at all.
- pipeline_errors: errors of a pipeline in one line; what Beam prints is kept from the terminal.
- exit_signals: Ctrl-C, SIGTERM and SIGHUP end a command at once.
- operator_log: what the operator is told on stderr.

Beside the command:

- job_words: options that pipelines/replay_log.py and pipelines/live_stream.py share.
"""
