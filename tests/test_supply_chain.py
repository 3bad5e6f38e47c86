"""`make audit` fails for what is found and not accepted, and for nothing else; `make sbom` lists what users get."""

from __future__ import annotations

import datetime
import http.server
import importlib.metadata
import itertools
import json
import pathlib
import re
import sys
import threading
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from supply_chain import audit, sbom, tools
from supply_chain.audit import Accepted, Finding

TODAY = datetime.date(2026, 11, 22)
FINDING = Finding("wheel", "1.0", ("PYSEC-1", "CVE-1"), ("1.1",))


def accepted(until: str = "2027-01-31", name: str = "CVE-1", reason: str = "not used", package: str = "wheel") -> str:
    return f'[[accepted]]\nid = "{name}"\npackage = "{package}"\nreason = "{reason}"\nuntil = {until}\n'


def judged(text: str, today: datetime.date = TODAY) -> tuple[list[str], list[str]]:
    return audit.judge([FINDING], audit.read_accepted(text, TODAY), today)


def test_what_is_found_fails_unless_it_is_accepted() -> None:
    notes, wrong = judged("")
    assert notes == []
    assert len(wrong) == 1
    assert all(part in wrong[0] for part in ("wheel 1.0", "PYSEC-1 = CVE-1", "fixed in 1.1", "accepted.toml"))
    notes, wrong = judged(accepted())
    assert wrong == []
    assert "not used" in notes[0]
    assert judged(accepted(package="other"))[1] != []
    assert judged(accepted(name="CVE-2"))[1] != []


def test_what_was_accepted_fails_from_its_end_on() -> None:
    until = datetime.date(2027, 1, 31)
    assert judged(accepted(), until - datetime.timedelta(1))[1] == []
    assert "decide again" in judged(accepted(), until)[1][0]


def test_an_entry_needs_a_reason_and_an_end_that_is_near() -> None:
    with pytest.raises(ValueError, match="reason"):
        audit.read_accepted(accepted(reason=" "), TODAY)
    with pytest.raises(ValueError, match="184 days"):
        audit.read_accepted(accepted(until="2028-01-01"), TODAY)
    with pytest.raises(TypeError):
        audit.read_accepted('[[accepted]]\nid = "CVE-1"\n', TODAY)
    entries = audit.read_accepted(audit.ACCEPTED.read_text(), datetime.date.today())
    assert all(isinstance(entry, Accepted) for entry in entries)


def test_an_entry_that_is_not_found_any_more_is_told() -> None:
    notes, wrong = audit.judge([], audit.read_accepted(accepted(), TODAY), TODAY)
    assert wrong == []
    assert "not found any more" in notes[0]


class Osv(http.server.BaseHTTPRequestHandler):
    """Speaks OSV's interface, about the packages of ``bad``."""

    bad: tuple[str, ...] = ()
    asked: list[str]

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = query["package"]["name"]
        self.asked.append(name)
        found = [{"id": "CVE-2000-1", "modified": "2026-01-01T00:00:00Z", "details": "bad", "affected": []}]
        answer = json.dumps({"vulns": found} if name in self.bad else {}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def osv() -> Iterator[Any]:
    class Handler(Osv):
        asked: list[str] = []  # noqa: RUF012

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        Handler.address = f"http://127.0.0.1:{server.server_port}/v1/query"
        yield Handler
        server.shutdown()
        thread.join()


def need(name: str) -> None:
    if not (tools.tools_folder() / "bin" / name).exists():
        pytest.skip(f"{name} is not installed here: make audit sbom")


@pytest.mark.parametrize(
    ("bad", "code", "words"),
    [
        (("jinja2",), 0, "0 advisories to act on, by osv"),
        (("jinja2", "click"), 1, "FOUND click "),
        ((), 0, "NOT DONE, no advisories can be had here: osv knows no advisory about jinja2==2.4.1"),
    ],
)
def test_a_dependency_audit_by_a_service_that_answers(
    osv: Any, bad: tuple[str, ...], code: int, words: str, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    """pip-audit itself, over two packages, and a service on this machine."""
    need("pip-audit")
    osv.bad = bad
    for name in ("click", "rich"):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    assert audit.main(["--service", "osv", "--osv-url", osv.address, "--path", str(tmp_path)]) == code
    assert words in capsys.readouterr().out
    assert set(osv.asked) == ({"jinja2", "click", "rich"} if bad else {"jinja2"})


def test_a_dependency_audit_that_reaches_nobody_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    need("pip-audit")
    assert audit.main(["--service", "osv", "--osv-url", "http://127.0.0.1:9/v1/query"]) == 0
    assert "audit: NOT DONE" in capsys.readouterr().out


def test_tools_that_cannot_be_fetched_are_no_failure_and_other_faults_are(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of tools that has only a Python: `python -m venv` makes it where there is none."""
    python = tmp_path / "tools" / "bin" / "python"
    python.parent.mkdir(parents=True)
    nowhere = "PIP_INDEX_URL=http://127.0.0.1:9/simple PIP_FIND_LINKS= PIP_NO_CACHE_DIR=1"
    python.write_text(f'#!/bin/sh\n{nowhere} exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("SHH_SUPPLY_CHAIN", str(tmp_path / "tools"))
    assert audit.main([]) == 0
    assert sbom.main() == 0
    out = capsys.readouterr().out
    assert "audit: NOT DONE" in out
    assert "sbom: NOT DONE" in out
    with pytest.raises(RuntimeError, match="ended with"):
        tools.run(["sh", "-c", "echo no such option >&2; exit 2"])
    with pytest.raises(RuntimeError, match="ended with"):
        tools.run(["sh", "-c", "exit 1"], may_find=True)


def test_the_list_holds_what_users_get_and_no_tool_of_developers(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("cyclonedx-py")
    assert sbom.main(tmp_path / "dist" / "sbom.json") == 0
    bom = json.loads((tmp_path / "dist" / "sbom.json").read_text())
    scopes = {component["name"]: component["scope"] for component in bom["components"]}
    project = tomllib.loads((tools.ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"]:
        assert scopes[Requirement(text).name] == "required"
    extras = {extra: texts for extra, texts in project["optional-dependencies"].items() if extra not in ("dev", "docs")}
    told = re.search(r"not listed, of extras: (.*)\.", capsys.readouterr().out)
    lacks = told[1].split(", ") if told else []
    assert {"azure", "kafka", "s3", "yaml"} < set(extras)
    for text in itertools.chain(*extras.values()):
        name = sbom.canonical(Requirement(text).name)
        assert (name in lacks) != (name in map(sbom.canonical, scopes)), name
    assert scopes["confluent-kafka"] == scopes["boto3"] == "optional"
    assert not {"pytest", "mypy", "ruff", "hypothesis", "shifting-heavy-hitters"} & set(scopes)
    for component in bom["components"]:
        assert component["version"] == importlib.metadata.version(component["name"])
    references = {component["bom-ref"] for component in bom["components"]}
    assert all(set(edge["dependsOn"]) <= references for edge in bom["dependencies"])
    with pytest.raises(ValueError, match="lacks no-such-package"):
        sbom.runtime_bom(bom, {"no-such-package"}, set())


def test_ci_installs_locked_versions_that_fit_each_with_its_hashes() -> None:
    text = (tools.ROOT / ".ci" / "requirements.lock").read_text()
    assert not re.search(r"://|--(extra-)?index|--find-links", text), "it names no index"
    locked: dict[str, list[Version]] = {}  # several for several Pythons
    for line in text.replace("\\\n", "").splitlines():
        if not line.startswith("#"):
            pinned, *hashes = re.split(r"\s+--hash=", line)
            assert hashes
            assert all(re.fullmatch("sha256:[0-9a-f]{64}", one.strip()) for one in hashes)
            requirement = Requirement(pinned)
            (is_exact,) = requirement.specifier
            assert is_exact.operator == "=="
            locked.setdefault(sbom.canonical(requirement.name), []).append(Version(is_exact.version))
    project = tomllib.loads((tools.ROOT / "pyproject.toml").read_text())["project"]
    extras, asked = project["optional-dependencies"], {"dev"}
    asked |= {extra for one in map(Requirement, extras["dev"]) if one.name == sbom.PROJECT for extra in one.extras}
    for wanted in map(Requirement, [*project["dependencies"], *itertools.chain(*(extras[extra] for extra in asked))]):
        if wanted.name != sbom.PROJECT:
            versions = locked.get(sbom.canonical(wanted.name))
            assert versions, f"{wanted.name} is not locked: make lock"
            assert all(version in wanted.specifier for version in versions), f"{wanted} is locked otherwise: make lock"
