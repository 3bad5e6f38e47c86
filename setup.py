"""For Apache Beam's ``--setup_file``: all is declared in pyproject.toml."""

from setuptools import setup

setup()
