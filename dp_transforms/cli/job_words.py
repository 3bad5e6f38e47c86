"""The words that pipelines/replay_log.py and pipelines/live_stream.py share: options of `shh` beside Beam's own.

Ours are written as `shh` writes them, with hyphens; those of Beam have underscores, and ours may.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dp_transforms.beam.runner_options import split_words
from dp_transforms.errors import UserError
from dp_transforms.logs import EventFields

if TYPE_CHECKING:
    from apache_beam.utils.secret import GcpSecret

_SECRET_VERSION = re.compile(r"projects/[^/\s]+/secrets/[^/\s]+/versions/[1-9]\d*")


def job_parser(description: str) -> argparse.ArgumentParser:
    """With the options of every job: plan, key, fields, public items, and the name of the stream."""
    made = argparse.ArgumentParser(description=description, epilog="All other options are Beam's.", allow_abbrev=False)
    made.add_argument("--plan", required=True, help="a path or URL: what shh plan --output wrote")
    key = made.add_mutually_exclusive_group()
    key.add_argument(
        "--noise-key-file",
        help="at least 32 random bytes, mode 0600, at this path for every worker; needed but on DirectRunner, which"
        " draws a key for this run and forgets it",
    )
    key.add_argument("--noise-key-secret", help="projects/P/secrets/S/versions/N, which workers fetch: for Dataflow")
    made.add_argument("--user-field", default="user")
    made.add_argument("--item-field", action="append", help="several, each with --item-field, make one label")
    made.add_argument("--time-field", default="timestamp")
    made.add_argument("--time-format", choices=("s", "ms", "us"), help="of times that are numbers: their unit")
    made.add_argument("--public-items", help="for a plan with public items: the path or URL of their list")
    made.add_argument("--stream", default="events", help="name of the stream in the report")
    return made


def parse_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of the parser, and the words that are Beam's. Ours may have underscores too, as the parameters of a
    flex template have. Ends the process as argparse does, also for an option that nobody has: Beam would drop it, and
    say so in its log alone."""
    ours = {name: int(action.nargs != 0) for name, action in parser._option_string_actions.items()}
    rest, beams = split_words([_with_hyphens(parser, word) for word in words], ours)
    return parser.parse_args(rest), beams


def _with_hyphens(parser: argparse.ArgumentParser, word: str) -> str:
    name, equals, value = word.partition("=")
    ours = name.replace("_", "-")
    return f"{ours}{equals}{value}" if ours in parser._option_string_actions else word


def fields_of(ours: argparse.Namespace) -> EventFields:
    """Raises ValueError."""
    return EventFields(ours.user_field, ours.item_field or "item", ours.time_field, ours.time_format)


def noise_key_of(ours: argparse.Namespace) -> GcpSecret | str | None:
    """The secret that workers fetch, the path of a key file, or None. Raises UserError."""
    return ours.noise_key_file if ours.noise_key_secret is None else _noise_key_secret(ours.noise_key_secret)


def _noise_key_secret(version: str) -> GcpSecret:
    """A noise key in Google Secret Manager, which workers fetch themselves. Nothing is fetched here.

    version: of ``--noise-key-secret``. Raises UserError for anything but a fixed version.
    """
    if not _SECRET_VERSION.fullmatch(version):
        raise UserError(
            "--noise-key-secret must be projects/P/secrets/S/versions/N with a number N: a key must not change"
            " while a run goes on."
        )
    from apache_beam import GcpSecret  # a stream waits for Beam anyway; a replay here must not

    return GcpSecret(version)
