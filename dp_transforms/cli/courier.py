"""Sends each new window on to a program while a stream runs (``--on-new``).

A window is sent once its report can be read in the output, so from released values alone, in the order in which they
are there, and again until it is taken. Each one that was taken is noted in a file, so that the same command again sends
what was not, and perhaps one twice. The next part of a run has an output of its own, and sends nothing of this one. Who
takes none delays no report and ends no stream.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from dp_transforms.checks import on_one_line
from dp_transforms.cli.stream_options import NewsOptions
from dp_transforms.errors import StreamError, UserError
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports import ReportSink, encode_trend
from dp_transforms.reports.report_writer import key_of
from dp_transforms.reports.trends import Trend, trends
from dp_transforms.stores.local_files import open_private_end

PATIENCE_SECONDS = 120.0  # with who takes nothing, once the run is over
_AFTER_AN_ERROR_SECONDS = 5.0
_TO_ANSWER_SECONDS = 30.0
_LONGEST_PAUSE_SECONDS = 60.0
_AT_THE_END_SECONDS = 4.0
_MOST_NOTED_BYTES = 1 << 30
_MOST_SHOWN = 200
_UNREAD = "the output was not read to its end"
Deliver = Callable[[bytes], None]


class NotTakenError(Exception):
    """A window was not taken. Says why, on one line."""

    @classmethod
    def of(cls, error: Exception) -> NotTakenError:
        """Whatever went wrong."""
        if isinstance(error, cls):
            return error
        words = getattr(error, "strerror", None)
        return cls(type(error).__name__ + (f" ({words})" if words else ""))


def to_program(words: Sequence[str]) -> Deliver:
    """Runs it with the JSON as its standard input; exit code 0 takes it."""

    def run(line: bytes) -> None:
        with tempfile.TemporaryFile() as said:
            try:  # a session of its own: Ctrl-C is for the stream
                process = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True
                )
            except OSError as error:
                raise NotTakenError(f"it cannot be run ({error.strerror})") from None
            try:
                process.communicate(line, timeout=_TO_ANSWER_SECONDS)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # it may run as another user
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(1)
                raise NotTakenError(f"it did not end within {_TO_ANSWER_SECONDS:.0f} s") from None
            if process.returncode:
                said.seek(0)
                words_said = on_one_line(said.read(_MOST_SHOWN).decode(errors="replace").strip(), most=_MOST_SHOWN)
                raise NotTakenError(f"exit code {process.returncode}" + (f": {words_said}" if words_said else ""))

    return run


class SentWindows:
    """Which windows of a run were taken, in a file that several runs can share.

    Raises OSError unless that can be written, by this user alone and through no link.
    """

    def __init__(self, path: str, run_id: str) -> None:
        self._run_id = run_id
        self._file = open_private_end(path)
        self._file.seek(0)
        self._noted = set(self._file.read(_MOST_NOTED_BYTES).decode(errors="replace").split("\n"))

    def has(self, trend: Trend) -> bool:
        return self._line(trend) in self._noted

    def note(self, trend: Trend) -> None:
        """On to the disk."""
        line = self._line(trend)
        self._noted.add(line)
        self._file.write(f"\n{line}\n".encode())  # the first newline ends what a process left that died here
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def _line(self, trend: Trend) -> str:
        return f"{self._run_id}|{key_of(trend.report)}"


class Courier:
    """Follows a run in its output, in a thread of its own, which no error ends.

    tell: says a line to the operator; from that thread. pause_seconds: between two looks, and after a first failure.
    """

    def __init__(
        self,
        sink: ReportSink,
        run_id: str,
        deliver: Deliver,
        sent: SentWindows,
        tell: Callable[[str], None],
        *,
        pause_seconds: float = 1.0,
    ) -> None:
        self._follower = sink.follow(run_id)
        self._run_id, self._deliver, self._sent, self._tell = run_id, deliver, sent, tell
        self._waiting: collections.deque[Trend] = collections.deque()
        self._unseen: list[WindowReport] = []  # read, and not yet compared with the window before
        self._latest: WindowReport | None = None
        self._failures, self._why = 0, _UNREAD
        self._pause_seconds = pause_seconds
        self._is_over, self._is_done, self._is_given_up = threading.Event(), False, False
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
        self._thread.start()

    def finish(self, patience_seconds: float) -> bool:
        """When the output does not grow any more: whether all that is there was taken. After that none is sent but the
        one that is on its way."""
        self._is_over.set()
        self._thread.join(patience_seconds)
        self._is_given_up = True
        return self._is_done

    @property
    def left_words(self) -> str:
        many = len(self._waiting)
        return f"{many:,} {'window was' if many == 1 else 'windows were'} not sent on: {self._why}."

    def _run(self) -> None:
        with contextlib.closing(self._follower), contextlib.closing(self._sent):
            while not (self._is_done or self._is_given_up):
                is_last = self._is_over.is_set()  # before it looks: what is published by then is seen
                is_read = self._look()
                while self._waiting and not self._is_given_up and self._is_taken(self._waiting[0]):
                    self._waiting.popleft()
                self._is_done = is_last and is_read and not self._waiting
                pause = min(self._pause_seconds * 2 ** min(self._failures, 16), _LONGEST_PAUSE_SECONDS)
                if is_last and not self._is_done:
                    time.sleep(min(pause, _AT_THE_END_SECONDS))
                else:
                    self._is_over.wait(pause)

    def _look(self) -> bool:
        """Takes what is new; whether the output could be read. Who watches the stream says if it cannot."""
        try:
            header, reports, _, is_new = self._follower.read_new()
            if is_new:
                self._waiting.clear()
                self._unseen, self._latest = [], None
            self._unseen.extend(reports)
            if header is not None and self._unseen:
                before = [] if self._latest is None else [self._latest]
                found = [each for each in trends(header.plan, before + self._unseen) if each.report is not self._latest]
                self._waiting.extend([each for each in found if not self._sent.has(each)])
                self._unseen, self._latest = [], self._unseen[-1]
        except StreamError:
            self._why = _UNREAD
            return False
        except Exception as error:
            self._failed(f"{_UNREAD}: {NotTakenError.of(error)}", "It is read again.")
            return False
        return True

    def _is_taken(self, trend: Trend) -> bool:
        try:
            self._deliver(encode_trend(trend, self._run_id).encode() + b"\n")
        except Exception as error:
            start = format_utc(trend.report.window_start)
            self._failed(str(NotTakenError.of(error)), f"The window of {start} is sent again, and others behind it.")
            return False
        if self._failures:
            self._say("New windows are taken again.")
        self._failures = 0
        try:
            self._sent.note(trend)
        except Exception as error:
            why = NotTakenError.of(error)
            self._say(f"A window was taken, and --sent-file cannot say so: {why}. It may be sent again.")
        return True

    def _failed(self, why: str, then: str) -> None:
        self._failures += 1
        self._why = why
        if self._failures & (self._failures - 1) == 0:  # more and more rarely
            self._say(f"New windows are not sent on: {why}. {then}")

    def _say(self, text: str) -> None:
        with contextlib.suppress(Exception):  # a terminal can go away
            self._tell(text)


@contextlib.contextmanager
def sent_on(options: NewsOptions, sink: ReportSink, run_id: str, tell: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, and after it, windows are sent on, if anybody wants them.

    Raises UserError if the block has ended well and who wants them takes some no more.
    """
    if options.on_new is None:
        yield
        return
    deliver = to_program(_words_of(options.on_new))
    path = options.sent_file or (f"{sink.folder}.sent" if sink.folder else None)
    if path is None:
        raise UserError("--on-new needs --sent-file FILE where --output is no folder: it says what was sent.")
    try:
        sent = SentWindows(path, run_id)
    except OSError as error:
        raise UserError(f"--sent-file {path} cannot be written: {error.strerror}. Name another one.") from None
    courier = Courier(sink, run_id, deliver, sent, tell)
    try:
        yield
    except BaseException as error:
        if not courier.finish(_AFTER_AN_ERROR_SECONDS if isinstance(error, Exception) else 0):
            tell(courier.left_words)
        raise
    if not courier.finish(PATIENCE_SECONDS):
        raise UserError(
            f"{courier.left_words} The run is over, and all its reports are in the output: shh show --json prints"
            " the same lines. With --state the same command sends what was not."
        )


def _words_of(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words:
        raise UserError("--on-new must be a program and its words, such as 'sh tell.sh'. Check its quotes.")
    return words
