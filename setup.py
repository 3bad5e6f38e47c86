"""Shim for Apache Beam's ``--setup_file``; everything is declared in pyproject.toml."""

from setuptools import setup

setup()
