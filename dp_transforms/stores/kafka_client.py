"""How this package talks to Kafka: with the operator's settings, which are never shown, and errors by name only."""

from __future__ import annotations

import logging
import operator
import re
import types
from collections.abc import Mapping
from typing import Any

from dp_transforms.checks import how_to_install, on_one_line
from dp_transforms.errors import StreamError
from dp_transforms.stores.files import read_file

TOPIC = "kafka://HOST:PORT/TOPIC"  # what names a topic
_MAX_FILE_BYTES = 1 << 20
_SCHEME = "kafka://"
_SERVERS_AND_TOPIC = re.compile(r"([^\s/@]+:\d{1,5}(?:,[^\s/@]+:\d{1,5})*)/([A-Za-z0-9._-]{1,249})")


def is_topic(place: str) -> bool:
    return place.startswith(_SCHEME)


def topic_of(url: str) -> tuple[str, str]:
    """Servers and topic. Raises ValueError."""
    parts = _SERVERS_AND_TOPIC.fullmatch(url.removeprefix(_SCHEME))
    if parts is None or not is_topic(url):
        raise ValueError(
            f"must be {TOPIC}, with several HOST:PORT by commas. Names and passwords go into a file: --kafka-config."
        )
    return parts[1], parts[2]


def import_confluent_kafka() -> Any:
    """The client library, an extra. Raises StreamError without it."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise StreamError(f"Kafka needs the confluent-kafka client. {how_to_install('kafka')}") from None
    return confluent_kafka


def client_settings(
    bootstrap_servers: str, config_file: str | None, own: Mapping[str, object], defaults: Mapping[str, object]
) -> dict[str, object]:
    """All settings of a client. The file is read now, on the machine that connects: ``key=value`` by line, ``#`` and
    ``!`` begin comments. ``own`` settings win over it, and ``defaults`` give way. Raises StreamError, without a value.
    """
    from_file = {} if config_file is None else _read_config_file(config_file)
    if reserved := sorted(from_file.keys() & own.keys()):
        raise StreamError(
            f"{on_one_line(str(config_file))}: the settings {', '.join(reserved)} are set by the command. Leave them"
            " out."
        )
    return {**defaults, **from_file, "bootstrap.servers": bootstrap_servers, **own}


def _read_config_file(path: str) -> dict[str, str]:
    try:
        content = read_file(path, _MAX_FILE_BYTES)
        lines = [line.strip() for line in content.decode().splitlines()]
        settings = [line.partition("=") for line in lines if line and line[0] not in "#!"]
        if len(content) > _MAX_FILE_BYTES or not all(key and equals for key, equals, _ in settings):
            raise ValueError
    except (OSError, ValueError):
        raise StreamError(
            f"{on_one_line(path)}: the file of Kafka client settings cannot be read. Put a regular file of at most 1 MB"
            " there, on every worker, with a key=value in each line."
        ) from None
    return {key.strip(): value.strip() for key, _, value in settings}


def silent_logger() -> logging.Logger:
    """Drops the log of the client, because nobody has checked what its lines contain."""
    logger = logging.getLogger(f"{__name__}.dropped")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def make_client(
    kind: str,
    bootstrap_servers: str,
    config_file: str | None,
    own: Mapping[str, object] = types.MappingProxyType({}),
    defaults: Mapping[str, object] = types.MappingProxyType({}),
) -> Any:
    """kind: Consumer or admin.AdminClient. Others: as of `client_settings`. Raises StreamError, also for settings that
    the client refuses: it names the setting, never its value."""
    kafka = import_confluent_kafka()
    settings = client_settings(bootstrap_servers, config_file, own, defaults)
    try:
        return operator.attrgetter(kind)(kafka)(settings, logger=silent_logger())
    except (kafka.KafkaException, ValueError, TypeError) as error:
        named = [on_one_line(key) for key in settings if f'"{key}"' in str(error)]
        shown = f": check {', '.join(named)}" if named else ""
        raise StreamError(f"the Kafka client refuses its settings{shown}. See librdkafka's CONFIGURATION.md.") from None


def error_name(error: Any) -> str:
    """The name of a KafkaError, or of the error in a KafkaException: fixed words, without host, topic or content."""
    inner = error.args[0] if isinstance(error, BaseException) and error.args else error
    name = getattr(inner, "name", None)
    return str(name()) if callable(name) else "unknown error"
