"""``make sbom``: the packages that a user of shh gets, as CycloneDX, in dist/sbom.cdx.json.

cyclonedx-bom lists all that is installed, development tools too. This keeps the requirements of the package and theirs,
and marks what only an extra for users brings as optional, as far as it is installed here: it says which is not. The
result is checked against the schema of CycloneDX. The package carries no code of others.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import re
import sys
import tempfile
import tomllib
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
    count = sum(component["scope"] == "required" for component in bom["components"])
    print(f"sbom: {os.path.relpath(output)} lists {count} packages, and {len(bom['components']) - count} of extras.")
    if missing:
        print(f"sbom: not installed here, and so not listed, of extras: {', '.join(sorted(missing))}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
