# SPDX-License-Identifier: Apache-2.0
"""Writes each object of YAML files that Kubernetes itself knows into a file of its own: core_objects.py FOLDER FILE...

Of a JobSet it writes the jobs.
"""
import pathlib
import sys
from typing import Any, Iterator

import yaml


def core(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if document["kind"] != "JobSet":
        yield document
        return
    for job in document["spec"]["replicatedJobs"]:
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, "spec": job["template"]["spec"]}


class Plain(yaml.SafeDumper):
    """Without anchors, which the validator need not know."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


folder = pathlib.Path(sys.argv[1])
for path in map(pathlib.Path, sys.argv[2:]):
    for document in yaml.safe_load_all(path.read_text()):
        for number, found in enumerate(core(document)):
            target = folder / f"{path.stem}-{document['kind']}-{number}.core.yaml"
            target.write_text(yaml.dump(found, Dumper=Plain))
            print(target.name)
