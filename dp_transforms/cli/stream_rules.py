"""Which options of ``shh stream`` need or exclude each other, what must be there before, and where its stop file is."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import stat
import tempfile
from collections.abc import Collection
from typing import Any

from dp_transforms.cli.engine_choice import EngineChoice
from dp_transforms.cli.options import flag
from dp_transforms.cli.state_options import check_state_options
from dp_transforms.cli.table_output import check_table, check_table_for_workers, output_table
from dp_transforms.errors import UserError
from dp_transforms.stores.local_files import open_regular

CLOCK_OPTIONS = ("allowed_lateness", "out_of_order", "max_ahead", "idle_timeout", "shown_within")
_OF_KAFKA = ("topic", "kafka_config", "avro_schema", "avro_framing", "avro_schema_id", "producer_times")
_LONGEST_NAME = 80
_FILES_READ_HERE = ("avro_schema", "kafka_config")
_PATHS = (
    "folder",
    *_FILES_READ_HERE,
    "output_kafka_config",
    "output",
    "dead_letter",
    "noise_key_file",
    "stop_file",
    "state",
)


def with_absolute_paths(options: dict[str, Any]) -> dict[str, Any]:
    """A copy: workers have another current folder. Raises UserError for a URL in the place of a path."""
    table = output_table(options)
    if table is not None:
        options = {**options, "output": table.url}
    paths = [name for name in _PATHS if not (name == "output" and table is not None)]
    for name in paths:
        if "://" in (options[name] or ""):
            raise UserError(f"{flag(name)} must be a path, got a URL. Mount what it names, and give the path of that.")
    return {
        name: os.path.abspath(value) if name in paths and value is not None else value
        for name, value in options.items()
    }


def check_rules(options: dict[str, Any], given: Collection[str], engine: EngineChoice) -> None:
    """given: the options that the operator gave. Raises UserError for the first rule that is broken."""
    _check_input(options)
    _check_output(options, given)
    table = output_table(options)
    if table is not None:
        check_table_for_workers(table, is_local=engine.is_local)
        check_table(table)
    _check_folders({**options, "output": options["output"] if table is None else None}, engine)
    _check_files(options, engine)
    check_state_options(options)
    if options["metrics_port"] is not None and options["detach"]:
        raise UserError(
            "--metrics-port cannot be used with --detach: this command serves the numbers while it runs. Leave it out;"
            " the cluster's own reporter has them (docs/deploy.md, what to watch)."
        )
    if options["allow_empty"] and not options["once"]:
        raise UserError("--allow-empty belongs to --once: other runs wait for events. Leave it out.")
    if options["once"] and options["detach"]:
        raise UserError("--once cannot be used with --detach: this command drains the run. Leave one of them out.")
    if options["state"] is not None and options["detach"]:
        raise UserError(
            "--state cannot be used with --detach: this command puts the new state in its place when the stream ends."
            " Leave --detach out."
        )


def _check_input(options: dict[str, Any]) -> None:
    if (options["kafka"] is None) == (options["folder"] is None):
        raise UserError("give one input: --kafka HOST:PORT --topic TOPIC or --folder PATH.")
    for name in _OF_KAFKA:
        if options[name] is not None and options["kafka"] is None:
            raise UserError(f"{flag(name)} belongs to --kafka. Leave it out, or give --kafka.")
    if options["record_format"] == "avro" and options["kafka"] is None:
        raise UserError("--format avro belongs to --kafka: the ending of a file says its format. Leave it out.")
    if options["kafka"] is None:
        return
    if options["csv_separator"] is not None or options["csv_line_ends_in_cells"]:
        raise UserError("--csv-separator and --csv-line-ends-in-cells are for files of --folder. Leave them out.")
    if options["topic"] is None:
        raise UserError("--kafka needs --topic: which topic to read.")
    if options["producer_times"] and options["clock"] != "arrival":
        raise UserError("--producer-times belongs to --clock arrival. Leave it out.")
    if (options["record_format"] == "avro") != (options["avro_schema"] is not None):
        raise UserError("--format avro and --avro-schema FILE belong together. Give both or none.")
    if options["record_format"] != "avro" and options["avro_framing"] is not None:
        raise UserError("--avro-framing belongs to --format avro. Leave it out.")
    if options["avro_schema_id"] is not None and options["avro_framing"] != "confluent":
        raise UserError("--avro-schema-id belongs to --avro-framing confluent. Leave it out.")


def _check_output(options: dict[str, Any], given: Collection[str]) -> None:
    if (options["output"] is None) == (options["output_topic"] is None):
        raise UserError("give one output: --output FOLDER, a database in --output, or --output-topic TOPIC.")
    if "output_format" in given and output_table(options) is not None:
        raise UserError("--output-format is for folders and topics; a table has columns. Leave it out.")
    for name in ("output_kafka", "output_kafka_config"):
        if options[name] is not None and options["output_topic"] is None:
            raise UserError(f"{flag(name)} belongs to --output-topic. Leave it out, or name the topic.")
    if options["output_topic"] is not None and (options["output_kafka"] or options["kafka"]) is None:
        raise UserError("--output-topic needs --output-kafka HOST:PORT: the servers that have the topic.")


def _check_folders(options: dict[str, Any], engine: EngineChoice) -> None:
    for name in ("output", "dead_letter"):
        if options[name] is not None and engine.is_local:
            _check_can_be_written(options[name], flag(name))
    if options["dead_letter"] and options["output"]:
        one, other = (os.path.realpath(options[name]) for name in ("dead_letter", "output"))
        if one == other or one.startswith(other + os.sep):
            raise UserError(
                "--dead-letter must lie outside --output: the guarantee does not cover it. Name another folder."
            )
    if options["folder"] is not None and engine.is_local and not os.path.isdir(options["folder"]):
        raise UserError(f"--folder {options['folder']} is not a folder. Make it, or name another one.")


def _check_can_be_written(path: str, option: str) -> None:
    """The folder, or the one that it will be made in, can be written."""
    place = pathlib.Path(path).absolute()
    if place.exists() and not place.is_dir():
        raise UserError(f"{option} {path} is a file. Name a folder.")
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{option} {path} cannot be written: Permission denied. Name another folder.")


def _check_files(options: dict[str, Any], engine: EngineChoice) -> None:
    """Files that this process reads are regular ones: a pipe would be waited for, perhaps forever."""
    for name in (*_FILES_READ_HERE, "output_kafka_config"):
        path = options[name]
        if path is None:
            continue
        if name not in _FILES_READ_HERE and not engine.is_local and not os.path.lexists(path):
            continue  # a mount of the workers, who check it
        try:
            open_regular(path).close()
        except OSError as error:
            raise UserError(f"{flag(name)} {path} cannot be read: {error.strerror}. Name a regular file.") from None


def stop_file_of_run(named: str | None, output: str | None, run_id: str, *, is_local: bool) -> str | None:
    """The path of --stop-file; else one beside the folder of reports; else one that only this user can make.

    named, output: --stop-file and --output, None if not given. is_local: whether all workers run on this machine. None:
    nobody can request a stop. Raises UserError if somebody else owns the folder of stop files.
    """
    if named is not None:
        return named
    if output is not None:
        return f"{output}.stop"
    return os.path.join(_private_folder(), f"{_file_name(run_id)}.stop") if is_local else None


def _file_name(run_id: str) -> str:
    """Readable, and different for each run id: a run must find its own file when it is resumed, and no other."""
    readable = re.sub(r"[^A-Za-z0-9-]", "_", run_id)[:_LONGEST_NAME]
    return f"{readable}-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"


def _private_folder() -> str:
    """A folder of mode 0700 in the temporary folder, where others could make a file of a name that they guess."""
    path = os.path.join(tempfile.gettempdir(), f"shh-{os.geteuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise UserError(
            f"the folder {path} for the stop file cannot be made: {error.strerror}. Name --stop-file."
        ) from None
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UserError(
            f"{path} must be a folder of this user with mode 0700, for the stop file. Somebody else may have made it."
            " Remove it, or name --stop-file."
        )
    return path
