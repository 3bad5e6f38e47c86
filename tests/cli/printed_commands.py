"""The command that `shh doctor` prints."""

import re
import shlex


def command_of(said):
    """The words of the printed command, without ``shh``."""
    (shown,) = re.findall(r"^  (shh replay (?:.*\\\n)*.*)$", said, re.MULTILINE)
    return shlex.split(shown.replace("\\\n", " "))[1:]
