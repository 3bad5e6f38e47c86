"""The command line options of an engine, the same in every command that has engines."""

from __future__ import annotations

import click

from dp_transforms.cli.grouped_options import BUDGET, ENGINE, option

FLINK_MASTER = option(
    ENGINE,
    "--flink-master",
    metavar="HOST:PORT",
    help="REST address of the Flink cluster. Default: [local], a Flink that is started here.",
)
PARALLELISM = option(ENGINE, "--parallelism", type=click.IntRange(min=1), help="Parallel parts on Flink. Default: 1.")
WORKER_POOL = option(
    ENGINE,
    "--worker-pool",
    metavar="HOST:PORT",
    help="Address of Beam's Python workers for Flink, as Flink sees it. Default: workers that are started here, "
    "with --flink-master [local].",
)
ALLOW_OPEN_PORTS = option(
    ENGINE,
    "--allow-open-ports",
    is_flag=True,
    default=False,
    help="Run even if other machines may reach a port that takes code without a password: a port of the engine or "
    "of --worker-pool. First close it off by other means (docs/deploy.md).",
)
NOISE_KEY_SECRET = option(
    BUDGET,
    "--noise-key-secret",
    metavar="VERSION",
    help="The noise key as a version of a secret in Google Secret Manager, projects/P/secrets/S/versions/1.",
)
