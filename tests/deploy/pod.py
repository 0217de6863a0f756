"""What Kubernetes would start: reads the Jobs of a YAML file, also those inside of a JobSet.

    pod.py argv FILE JOB CONTAINER [PROBE]     command and args, or the command of a probe; NUL behind each word
    pod.py env FILE JOB CONTAINER              NAME=VALUE, NUL behind each
    pod.py action FILE JOB CODE                what the Job does after this exit code: Complete, FailJob or Restart
    pod.py grace FILE JOB                      terminationGracePeriodSeconds
    pod.py write FILE JOB                      the Job as a document of its own

A field of the pod (fieldRef) is the index of a worker, POD_INDEX (default 0).
"""

from __future__ import annotations

import os
import sys
from typing import Any

import yaml


def jobs(path: str) -> dict[str, dict[str, Any]]:
    """The spec of each Job, by its name; of a JobSet by the name of its replicated job."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for document in yaml.safe_load_all(file):
            if document["kind"] == "Job":
                found[document["metadata"]["name"]] = document["spec"]
            elif document["kind"] == "JobSet":
                found |= {job["name"]: job["template"]["spec"] for job in document["spec"]["replicatedJobs"]}
    return found


def environment(container: dict[str, Any]) -> dict[str, str]:
    index = os.environ.get("POD_INDEX", "0")
    return {entry["name"]: entry.get("value", index) for entry in container.get("env", [])}


def words(container: dict[str, Any], probe: str) -> list[str]:
    if probe:
        return container[probe]["exec"]["command"]
    found = [*container.get("command", []), *container.get("args", [])]
    for name, value in environment(container).items():
        found = [word.replace(f"$({name})", value) for word in found]
    return found


def action(job: dict[str, Any], code: int) -> str:
    """The rules on exit codes of a pod that nothing disrupted."""
    if code == 0:
        return "Complete"
    for rule in job["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes and (code in codes["values"]) == (codes["operator"] == "In"):
            return rule["action"]
    return "Restart"


def main() -> None:
    verb, path, name, *rest = sys.argv[1:]
    job = jobs(path)[name]
    pod = job["template"]["spec"]
    if verb == "action":
        print(action(job, int(rest[0])))
    elif verb == "grace":
        print(pod["terminationGracePeriodSeconds"])
    elif verb == "write":
        print(yaml.safe_dump({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job}))
    else:
        containers = [*pod.get("initContainers", []), *pod["containers"]]
        container = next(found for found in containers if found["name"] == rest[0])
        pairs = [f"{key}={value}" for key, value in environment(container).items()]
        listed = pairs if verb == "env" else words(container, rest[1] if len(rest) > 1 else "")
        sys.stdout.write("".join(f"{word}\0" for word in listed))


if __name__ == "__main__":
    main()
