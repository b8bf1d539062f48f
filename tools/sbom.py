"""The wheel's bill of materials: CycloneDX 1.6 as JSON, for `.dist-info/sboms/` (PEP 770).

Deterministic on purpose: the serial number is derived from what is listed, the time is the
commit's. tests/project/test_packaging.py holds it against the published schema.
"""

from __future__ import annotations

import datetime
import json
import uuid
from typing import Any

# (purl, or "" where the package lists know no such name; where it is developed)
PLACES = {
    "scipy-openblas32": "https://github.com/MacPython/openblas-libs",
    "OpenBLAS": "https://github.com/OpenMathLib/OpenBLAS",
    "LAPACK": "https://github.com/Reference-LAPACK/lapack",
    "GCC runtime library": "https://gcc.gnu.org/git/gcc.git",
}
PURLS = {
    "scipy-openblas32": "pkg:pypi/scipy-openblas32@{}",
    "OpenBLAS": "pkg:github/OpenMathLib/OpenBLAS@v{}",
    "LAPACK": "pkg:github/Reference-LAPACK/lapack@v{}",
    "GCC runtime library": "pkg:generic/gcc@{}",
}
INSIDE = "statically linked into the vendored library; its notices are in licenses/OpenBLAS.txt"


def component(name: str, version: str, licence: str) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "library", "bom-ref": name, "name": name}
    if version:
        found["version"] = version
        found["purl"] = PURLS[name].format(version)
    found["licenses"] = [{"expression": licence}]
    found["externalReferences"] = [{"type": "vcs", "url": PLACES[name]}]
    if name != "scipy-openblas32":
        found["description"] = INSIDE
    return found


def bill(
    name: str, version: str, licence: str, epoch: int, parts: list[tuple[str, str, str]]
) -> str:
    """The document; `parts` are (name, version, SPDX licence), the first one holds the others."""
    when = datetime.datetime.fromtimestamp(epoch, datetime.UTC)
    components = [component(*part) for part in parts]
    refs = [part["bom-ref"] for part in components]
    edges = [{"ref": name, "dependsOn": refs[:1]}]
    edges += [{"ref": ref, "dependsOn": refs[1:] if i == 0 else []} for i, ref in enumerate(refs)]
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "library",
                "bom-ref": name,
                "name": name,
                "version": version,
                "purl": f"pkg:pypi/{name}@{version}",
                "licenses": [{"expression": licence}],
            },
        },
        "components": components,
        "dependencies": edges,
    }
    seed = json.dumps(document, sort_keys=True)
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, seed).urn
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
