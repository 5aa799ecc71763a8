"""A `kubectl` that answers what a test has written down, for states of pods that nothing here can have.

    python scripted_kubectl.py FOLDER …

FOLDER/get.json is what `get` prints; or the next line of FOLDER/reports.jsonl each time that it asks for the JobSet,
and the last one in the end. FOLDER/fail (text) makes every verb that FOLDER/fails names end with that text.
Each call is a line of FOLDER/asked; what comes by standard input is FOLDER/given-N.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml


def main(folder: Path, words: list[str]) -> None:
    """One call."""
    words = [word for word in words if not word.startswith(("--namespace=", "--context="))]
    with (folder / "asked").open("a") as file:
        file.write(" ".join(words) + "\n")
    number = len((folder / "asked").read_text().splitlines())
    given = sys.stdin.read() if "--filename=-" in words else ""
    (folder / f"given-{number}").write_text(given)
    fails = (folder / "fails").read_text().split() if (folder / "fails").exists() else []
    if words[0] in fails or f"{words[0]}-{number}" in fails:
        sys.exit((folder / "fail").read_text())
    if words[0] == "create":
        made = yaml.safe_load(given)
        made.setdefault("metadata", {}).update(uid="5d3c1f0e", namespace="ml")
        print(json.dumps(made))
    elif words[0] == "get":
        kinds = words[1]
        if (folder / "reports.jsonl").exists():
            print(json.dumps({"items": reported(folder, kinds)}))
            return
        name = next((word.rpartition("=")[2] for word in words if word.startswith("--selector=seatrial/run=")), "")
        text = (folder / "get.json").read_text() if "jobsets" in kinds else '{"items": []}'
        print(text.replace("NAME", name))
    elif words[0] == "delete":
        (folder / "get.json").write_text('{"items": []}')
    elif words[0] == "exec":
        sys.exit("error: Internal error occurred: error executing command in container: container is not running")


def reported(folder: Path, kinds: str) -> list[dict[str, Any]]:
    """The objects of these kinds by the recording that is there, for the JobSet that was created."""
    (made,) = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("given-*"))[:1]]
    reports = (folder / "reports.jsonl").read_text().replace("run-x7k2p", made["metadata"]["name"]).splitlines()
    asked = sum("jobsets" in line for line in (folder / "asked").read_text().splitlines() if line.startswith("get "))
    objects = json.loads(reports[min(max(asked, 1), len(reports)) - 1])
    return [each for each in objects if f"{each['kind'].lower()}s" in kinds]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
