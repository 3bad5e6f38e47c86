"""All is declared in pyproject.toml, but for the README on the page of an index. For Beam's ``--setup_file`` too."""

import pathlib
import re

from setuptools import setup

README = pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8")
# On an index a link to a file of the repository leads nowhere: its words remain.
setup(
    long_description=re.sub(r"!?\[([^]]*)\]\((?!https://)[^)]*\)", r"\1", README),
    long_description_content_type="text/markdown",
)
