"""The dependency audit, ``make audit``: are there known advisories about the installed packages? Exit code 1 if there
are, unless accepted.

If no service with advisories answers, it says so and exits with 0. A mirror of the index without advisories would look
like good news, so each service must first find a package that is known to be bad.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from supply_chain.tools import NoAnswerError, run, tool

ACCEPTED = pathlib.Path(__file__).with_name("accepted.toml")
_PROBE = "jinja2==2.4.1"  # has had advisories for many years
_SERVICES = ("pypi", "osv")
_LONGEST = datetime.timedelta(days=184)


class Finding(NamedTuple):
    """An advisory about an installed package. ids: its name, and others for the same."""

    package: str
    version: str
    ids: tuple[str, ...]
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        remedy = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "no fixed version yet"
        return f"{self.package} {self.version}: {' = '.join(self.ids)}; {remedy}"


class Accepted(NamedTuple):
    """An entry of accepted.toml. until: the first day on which it is not valid any more."""

    id: str
    package: str
    reason: str
    until: datetime.date


def read_accepted(text: str, today: datetime.date) -> list[Accepted]:
    """Raises ValueError for an entry without a reason, or with an end that is too far away."""
    entries = [Accepted(**entry) for entry in tomllib.loads(text).get("accepted", [])]
    for entry in entries:
        if not entry.reason.strip():
            raise ValueError(f"the accepted advisory {entry.id} must have a reason.")
        if entry.until > today + _LONGEST:
            raise ValueError(f"the accepted advisory {entry.id} must end within {_LONGEST.days} days.")
    return entries


def findings_of(report: Mapping[str, Any]) -> tuple[list[Finding], list[str]]:
    """From the JSON of pip-audit: advisories, and packages that the service does not know."""
    findings, unknown = [], []
    for package in report["dependencies"]:
        if "skip_reason" in package:
            unknown.append(package["name"])
        for advisory in package.get("vulns", ()):
            ids = (advisory["id"], *advisory["aliases"])
            findings.append(Finding(package["name"], package["version"], ids, tuple(advisory["fix_versions"])))
    return findings, unknown


def judge(
    findings: Sequence[Finding], accepted: Sequence[Accepted], today: datetime.date
) -> tuple[list[str], list[str]]:
    """Lines to print, and lines of advisories that must be acted on."""
    notes, wrong = [], []
    for finding in findings:
        entry = next((one for one in accepted if one.id in finding.ids and one.package == finding.package), None)
        if entry is None:
            wrong.append(f"{finding}. Raise its bound, or accept it with a reason in .ci/supply_chain/accepted.toml.")
        elif entry.until <= today:
            wrong.append(f"{finding}. It was accepted until {entry.until}: decide again.")
        else:
            notes.append(f"{finding}. Accepted until {entry.until}: {entry.reason}")
    found = {(name, finding.package) for finding in findings for name in finding.ids}
    notes += [
        f"{entry.package}: {entry.id} is not found any more. Take it out of .ci/supply_chain/accepted.toml."
        for entry in accepted
        if (entry.id, entry.package) not in found
    ]
    return notes, wrong


def query(service: str, osv_url: str | None, *what: str) -> tuple[list[Finding], list[str]]:
    """Runs pip-audit. Raises NoAnswerError."""
    words = [tool("pip-audit"), "--vulnerability-service", service, "--format", "json", "--progress-spinner", "off"]
    if osv_url is not None:
        words += ["--osv-url", osv_url]
    return findings_of(json.loads(run([*words, "--skip-editable", *what], may_find=True)))


def answering_service(services: Sequence[str], osv_url: str | None) -> str:
    """The first service that finds the package that is known to be bad. Raises NoAnswerError: what each of them did."""
    said = []
    with tempfile.TemporaryDirectory() as folder:
        probe = pathlib.Path(folder) / "probe.txt"
        probe.write_text(f"{_PROBE}\n")
        for service in services:
            try:
                findings, _ = query(service, osv_url, "--requirement", str(probe), "--no-deps", "--disable-pip")
            except NoAnswerError:
                said.append(f"{service} does not answer")
                continue
            if findings:
                return service
            said.append(f"{service} knows no advisory about {_PROBE}, which has some")
    raise NoAnswerError("; ".join(said))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service", action="append", choices=_SERVICES, help="default: each, until one answers")
    parser.add_argument("--osv-url", help="another address of OSV's interface")
    parser.add_argument("--path", default=sysconfig.get_path("purelib"), help="the packages to audit")
    options = parser.parse_args(arguments)
    today = datetime.date.today()
    accepted = read_accepted(ACCEPTED.read_text(), today)
    try:
        service = answering_service(options.service or _SERVICES, options.osv_url)
        findings, unknown = query(service, options.osv_url, "--path", options.path)
    except NoAnswerError as reason:
        print(f"audit: NOT DONE, no advisories can be had here: {reason}.")
        return 0
    notes, wrong = judge(findings, accepted, today)
    if unknown:
        notes.append(f"{service} does not know {', '.join(unknown)}")
    for line in notes:
        print(f"audit: {line}")
    for line in wrong:
        print(f"audit: FOUND {line}")
    print(f"audit: {len(wrong)} advisories to act on, by {service}.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
