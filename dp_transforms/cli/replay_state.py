"""A replay with ``--state``: its report and its new state appear together, after all is drawn.

A part that was killed between its intent and the new state *resumes*: noise is a function of the key, the run id, the
window, the item and who held it, so the same input gives the same bytes. A part that failed before it began to publish
takes its intent back where the log alone was the reason, also if it resumed: nobody has read anything of it. Afterwards
the same command finds that the part is done.
"""

from __future__ import annotations

import pathlib

from dp_transforms.cli.options import LogError
from dp_transforms.cli.output_file import check_output, is_taken, publish_output
from dp_transforms.cli.run_account import CONTINUES, NEW, RESUMES, PartFacts
from dp_transforms.cli.state_part import StatePart
from dp_transforms.errors import UserError
from dp_transforms.reports import read_report_file
from dp_transforms.runs.fingerprints import InputFingerprint
from dp_transforms.runs.state_header import StateError
from dp_transforms.stores.local_files import remove_dead_drafts
from dp_transforms.stores.remote_files import is_remote


def check_outputs(facts: PartFacts, output: str, dead_letter: str | None) -> PartFacts:
    """The facts. Raises UserError if the files of a new part exist, or cannot be written."""
    if facts.how in (NEW, CONTINUES):
        check_output(output)
        if dead_letter:
            check_output(dead_letter, "--dead-letter")
    return facts


class ReplayPart(StatePart):
    """A part that is taken from a log."""

    def __init__(self, facts: PartFacts, log: InputFingerprint) -> None:
        super().__init__(facts)
        self._log = log

    def _is_of_the_log(self, error: BaseException) -> bool:
        return isinstance(error, LogError)

    def check_log(self) -> None:
        """Raises LogError if the log was changed since it was fingerprinted. Call it before `publish`."""
        try:
            self._log.check_unchanged()
        except StateError as error:
            raise LogError(str(error)) from None

    def tidy(self) -> None:
        """Removes the drafts that a process left which was killed after it had published."""
        for path in (self.facts.record.output, self.facts.state_path):
            if not is_remote(path):
                remove_dead_drafts(pathlib.Path(path))

    def has_dead_letter(self, path: str) -> bool:
        """Whether the process that was killed has written it already: the same input has the same bad rows."""
        return self.facts.how == RESUMES and is_taken(path)

    def publish(self, report: str, state: str) -> None:
        """Gives the report its name, then the new state. report, state: finished drafts."""
        self._announce(state)
        output = self.facts.record.output
        if self.facts.how == RESUMES and is_taken(output):
            if not _are_same_reports(report, output):
                raise UserError(
                    f"{output} exists, and is not the report of this part. Move it away, and run the same command"
                    " again."
                )
        else:
            publish_output(report, output)
        self._replace_state(state)


def _are_same_reports(draft: str, published: str) -> bool:
    (header, reports), (other_header, other_reports) = read_report_file(draft), read_report_file(published)
    return header == other_header and list(reports) == list(other_reports)
