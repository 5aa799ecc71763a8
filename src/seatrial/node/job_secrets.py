"""The secrets of a job come as variables that it names, and are taken out of the environment of the processes."""

from __future__ import annotations

from typing import Any, MutableMapping


def with_secrets(job: dict[str, Any], environment: MutableMapping[str, str]) -> dict[str, Any]:
    """The job with its secrets, each from the variable in its table; they are taken out of `environment`."""
    for process, where, name, variable in job.pop("secrets"):
        value = environment[variable]
        if where == "stdin":
            job["processes"][process]["stdin"] = value
        else:
            job["processes"][process]["environment"][name] = value
    for name in [name for name in environment if name.startswith("SEATRIAL_SECRET_")]:
        del environment[name]
    return job
