"""The command ``shh``. Each subcommand has a module of its name.

- main: the entrance of the command. subcommands: runs the module of each subcommand, errors in one line.
- plan, audit, show, explain, ledger, simulate: each is its command. What is shown: `dp_transforms.views`.
- replay: its options, and what is said of its result. replay_run: its runs, here or by a runner.
- stream: its options, and its run. stream_watch: watches a run to its end.
- doctor: a look at a log, and which field may be user, item, time. log_sample: its first rows.

What several share:

- options: what commands and pipelines/*.py are declared with, and the options of several. plan_options: of a plan.
- run_account: what a ledger hears of a run.
- pipeline_errors: errors of a pipeline in one line; what Beam prints is kept from the terminal.
- exit_signals: Ctrl-C, SIGTERM and SIGHUP end a command at once. operator_log: what a command says.
"""
