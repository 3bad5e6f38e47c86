"""Follows a run of a topic of reports: all that is committed from its beginning on, each report once."""

from __future__ import annotations

from typing import Any, NamedTuple

from dp_transforms.checks import on_one_line
from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.reports.records import ReportFileError, ReportHeader, in_file_order
from dp_transforms.reports.report_topic import ReportTopic
from dp_transforms.reports.topic_run import CONSUME, TopicRun, kafka_errors, read_from_beginning
from dp_transforms.stores.kafka_client import import_confluent_kafka

_FOLLOWING = {
    "fetch.wait.max.ms": 50,  # a look waits for it: what it asks of the broker comes after it on the same connection
    "auto.offset.reset": "error",  # what was read is there no more: the topic was made anew, or has lost records
}
_SECONDS_TO_ANSWER = 5.0
_MOST_READS = 100  # in one reading, if others write faster than this reads
_MOST_NAMED = 5


class TopicNews(NamedTuple):
    """reports: those that no reading before had, in order. is_new: this is a first reading, and they are all.

    header: None while the run has not begun.
    """

    header: ReportHeader | None
    reports: list[WindowReport]
    ended: RunEnded | None
    is_new: bool


class TopicFollower:
    """Keeps a connection; for one thread at a time. Reads what `ReportTopic.read` reads, and nothing twice.

    run_id: None for the only run of the topic.
    """

    def __init__(self, topic: ReportTopic, run_id: str | None = None) -> None:
        self._topic = topic
        self._run_id = run_id
        self._consumer: Any = None
        self._held: TopicRun

    def read_new(self) -> TopicNews:
        """Raises StreamError, and loses nothing by it: the next reading goes on.

        After records that do not belong together, and once the topic is another one, it is a first reading again.
        """
        is_new = self._consumer is None
        with kafka_errors(self._topic.topic):
            if is_new:
                self._begin()
            else:
                self._go_on()
        reports, self._held.reports = in_file_order(self._held.reports), []
        return TopicNews(self._held.header, reports, self._held.ended, is_new)

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _begin(self) -> None:
        self._held = TopicRun(self._run_id or self._only_run(), keep=True)
        self._consumer, places = self._topic.consumer(_FOLLOWING)
        try:
            read_from_beginning(self._consumer, places, self._held.take, {})
        except BaseException:
            self.close()
            raise

    def _go_on(self) -> None:
        try:
            # Fails if no broker answers: reading would just wait.
            self._topic.partitions(self._consumer, _SECONDS_TO_ANSWER)
            for _ in range(_MOST_READS):
                if not self._read_some():
                    return
        except (ReportFileError, StreamError):
            self.close()
            raise

    def _read_some(self) -> bool:
        """Whether there may be more."""
        kafka = import_confluent_kafka()
        messages, failed = self._consumer.consume(CONSUME, timeout=0.1), None
        for message in messages:
            if (error := message.error()) is None:
                self._held.take(message)
            elif error.code() == kafka.KafkaError._AUTO_OFFSET_RESET:
                raise StreamError(
                    f"the topic {self._topic.topic!r} was made anew, or has lost records. It is read again from its"
                    " beginning."
                )
            elif error.code() != kafka.KafkaError._PARTITION_EOF:
                failed = error  # what came with it is taken first: it comes once
        if failed is not None:
            raise kafka.KafkaException(failed)
        return len(messages) == CONSUME

    def _only_run(self) -> str:
        found = self._topic.run_ids()
        if len(found) != 1:
            if not found:
                raise StreamError(f"the topic {self._topic.topic!r} holds no reports yet.")
            named = ", ".join(on_one_line(repr(each), most=100) for each in found[:_MOST_NAMED])
            more = ", ..." if len(found) > _MOST_NAMED else ""
            raise StreamError(
                f"the topic {self._topic.topic!r} has {len(found)} runs: {named}{more}. Choose one with --run-id."
            )
        return found[0]
