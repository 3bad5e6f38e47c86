"""``make sbom``: the packages that a user of shh gets, as CycloneDX, in dist/sbom.cdx.json and in the wheels beside it.

cyclonedx-bom lists all that is installed, development tools too. This keeps the requirements of the package and theirs,
and marks what only an extra for users brings as optional, as far as it is installed here: it says which is not. The
result is checked against the schema of CycloneDX. The package carries no code of others.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from typing import Any

from packaging.requirements import Requirement

from supply_chain.tools import ROOT, NoAnswerError, run, tool

PROJECT = "shifting-heavy-hitters"
_FOR_DEVELOPERS = ("dev", "docs")
OUTPUT = ROOT / "dist" / "sbom.cdx.json"
_VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(f"not valid CycloneDX 1.6: {error}" if error else 0)
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def extras_for_users() -> list[str]:
    """What users may install besides."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [extra for extra in found if extra not in _FOR_DEVELOPERS]


def closure(package: str, extras: Iterable[str] = ()) -> tuple[set[str], set[str]]:
    """A package's requirements and theirs, itself left out: those that are installed, and those that are not."""
    found: set[tuple[str, str]] = set()
    missing: set[str] = set()
    waiting = [(canonical(package), extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            missing.add(name)
            continue
        found.add((name, extra))
        for text in requirements:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(canonical(requirement.name), one) for one in ("", *requirement.extras)]
    return {name for name, _ in found} - {canonical(package)}, missing


def runtime_bom(bom: dict[str, Any], required: set[str], optional: set[str]) -> dict[str, Any]:
    """The part of a bill of materials for these packages. Raises ValueError if it lacks one."""
    names = {component["bom-ref"]: canonical(component["name"]) for component in bom["components"]}
    if missing := (required | optional) - set(names.values()):
        raise ValueError(f"the bill of materials lacks {', '.join(sorted(missing))}.")
    root = bom["metadata"]["component"]["bom-ref"]
    kept = {ref for ref, name in names.items() if name in required | optional}
    components = [
        {**component, "scope": "required" if names[component["bom-ref"]] in required else "optional"}
        for component in bom["components"]
        if component["bom-ref"] in kept
    ]
    dependencies = [
        {**edge, "dependsOn": [ref for ref in edge.get("dependsOn", ()) if ref in kept]}
        for edge in bom["dependencies"]
        if edge["ref"] in kept | {root}
    ]
    return {**bom, "components": components, "dependencies": dependencies}


def put_into(wheel: pathlib.Path, text: str) -> None:
    """Adds the list to a wheel that has none, where PEP 770 says; all else stays as it is. The record comes last."""
    with zipfile.ZipFile(wheel) as old:
        *entries, (record, listed) = [(entry, old.read(entry)) for entry in old.infolist()]
    added, content = f"{os.path.dirname(record.filename)}/sboms/{OUTPUT.name}", text.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    of_record = f"{added},sha256={digest},{len(content)}\n".encode()
    entry = zipfile.ZipInfo(added, record.date_time)
    entry.external_attr, entry.compress_type = record.external_attr, record.compress_type
    if added.encode() not in listed:
        with zipfile.ZipFile(wheel, "w") as new:
            for head, data in [*entries, (entry, content), (record, of_record + listed)]:
                new.writestr(head, data)


def main(output: pathlib.Path = OUTPUT) -> int:
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "all.json"
            words = [tool("cyclonedx-py"), "environment", "--pyproject", str(ROOT / "pyproject.toml")]
            run([*words, "--output-reproducible", "--output-file", str(path), sys.executable])
            required, _ = closure(PROJECT)
            all_of_users, missing = closure(PROJECT, extras_for_users())
            bom = runtime_bom(json.loads(path.read_text()), required, all_of_users - required)
            text = json.dumps(bom, indent=2) + "\n"
            path.write_text(text)
            run([tool("python"), "-c", _VALIDATE, str(path)])
    except NoAnswerError as reason:
        print(f"sbom: NOT DONE, its tools cannot be installed here: {reason}.")
        return 0
    output.parent.mkdir(exist_ok=True)
    output.write_text(text)
    for wheel in output.parent.glob("*.whl"):
        put_into(wheel, text)
    count = sum(component["scope"] == "required" for component in bom["components"])
    print(f"sbom: {os.path.relpath(output)} lists {count} packages, and {len(bom['components']) - count} of extras.")
    if missing:
        print(f"sbom: not installed here, and so not listed, of extras: {', '.join(sorted(missing))}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
