"""What `shh doctor` prints: the roles, the command, and what it finds."""

import re
import shlex

from dp_transforms.reports import read_report_file
from tests.helpers.shh_here import shh


def command_of(said):
    """The words of the printed command, without ``shh``."""
    (shown,) = re.findall(r"^  (shh replay (?:.*\\\n)*.*)$", said, re.MULTILINE)
    return shlex.split(shown.replace("\\\n", " "))[1:]


def roles_of(said):
    """As the look proposes them, without what is explained."""
    lines = re.findall(r"^  (?:user|item|time)   --\w+-field (.*)$", said, re.MULTILINE)
    return " ".join(re.sub(r" +", " ", line.partition("   (")[0]) for line in lines)


def replayed(folder, said):
    """The items that the printed command finds."""
    ended = shh(*command_of(said), cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert " 0 outside --start .. --end skipped" in ended.stderr
    assert " 0 unreadable" in ended.stderr
    report = command_of(said)[-1]
    return {found.item for each in read_report_file(str(folder / report))[1] for found in each.heavy_hitters}
