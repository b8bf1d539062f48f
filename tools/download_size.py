"""Print how much a `pip install` of the given words would download, before it does.

Asks pip for its plan (`--dry-run --report`) and each file's server for its length.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request


def file_bytes(url: str) -> int | None:
    """Length of the file behind `url` in bytes, None where the server does not say."""
    parts = urllib.parse.urlparse(url)
    if parts.scheme == "file":
        return os.stat(urllib.request.url2pathname(parts.path)).st_size
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=10) as answer:
            length = answer.headers.get("Content-Length")
    except OSError:
        return None
    return int(length) if length else None


def main() -> int:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-"]
    plan = subprocess.run([*command, *sys.argv[1:]], capture_output=True, text=True, check=False)
    if plan.returncode != 0:
        sys.stderr.write(plan.stderr)
        return plan.returncode
    urls = [item["download_info"]["url"] for item in json.loads(plan.stdout)["install"]]
    sizes = [file_bytes(url) for url in urls]
    known = sum(size for size in sizes if size is not None)
    unknown = sum(size is None for size in sizes)
    note = f", {unknown} of unknown size" if unknown else ""
    sys.stdout.write(f"{len(urls)} files, {known / 1e6:.0f} MB{note}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
