"""What the documents say is run: the README's example, the demo, and every option in docs/commands.md."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import click
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def run_python(*words: str, cwd: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_example_of_the_readme_finds_the_heavy_item(tmp_path: pathlib.Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example.count("\n") <= 10
    (tmp_path / "example.py").write_text(example)
    result = run_python("example.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (report,) = re.findall(r"WindowReport\(.*\)", result.stdout)
    assert "HeavyHitter(item='front page', zone='above', noisy_count=None)" in report


def test_the_demo_simulates_replays_and_shows(tmp_path: pathlib.Path) -> None:
    result = run_python("-m", "pipelines.demo", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.findall(r"^\$ shh (\w+)", result.stdout, re.MULTILINE) == ["simulate", "replay", "show"]
    assert "(2, 1e-09)-differentially private" in result.stdout
    assert "story-" in result.stdout.split("$ shh show")[1]
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["clicks.parquet", "report.avro"]


def _commands() -> dict[str, click.Command]:
    from pipelines.cli import shh

    context = click.Context(shh)
    found = {name: shh.get_command(context, name) for name in shh.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


@pytest.mark.parametrize("name", ["audit", "plan", "replay", "show", "simulate", "stream"])
def test_every_option_is_documented(name: str) -> None:
    command = _commands()[name]
    text = (ROOT / "docs" / "commands.md").read_text()
    section = re.search(rf"^## shh {name}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    documented = set(re.findall(r"^\| `(--[a-z-]+)", section[1], re.MULTILINE))
    options = {parameter.opts[0] for parameter in command.params if isinstance(parameter, click.Option)}
    assert documented == options


def test_every_command_is_documented_and_every_link_leads_somewhere() -> None:
    assert set(re.findall(r"^## shh (\w+)$", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)) == set(
        _commands()
    )
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
