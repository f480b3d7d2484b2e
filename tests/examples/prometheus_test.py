#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Prometheus scrapes a job of 8 processes at the port of their host, and evaluates examples/monitoring/rules.yml:
prometheus_test.py SOURCE_ROOT SHARDWIRE"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python/tests"))
from ports import free_port

RANKS = 8
PATIENCE_S = 120
CASE = {
    "tensors": [{"fqn": "w", "shape": [64, 64]}],
    "source": {"ranks": RANKS, "rules": {"*": {"chunk": 0, "over": RANKS}}},
    "target": {"ranks": RANKS, "rules": {"*": {"chunk": 1, "over": RANKS}}},
}


def start_job(command: str, place: pathlib.Path, port: int) -> subprocess.Popen:
    """Restores until it is interrupted, slowly: it is scraped meanwhile."""
    (place / "case.json").write_text(json.dumps(CASE))
    (place / "metrics").mkdir()
    environment = os.environ | {"SHARDWIRE_METRICS_FOLDER": str(place / "metrics"), "SHARDWIRE_METRICS_PORT": str(port)}
    arguments = ["--transport", "shm,tcp", "--rate", "16K", "--repeat", "1000000"]
    return subprocess.Popen([command, "run", place / "case.json", *arguments], env=environment, stdout=subprocess.DEVNULL)


def start_prometheus(root: pathlib.Path, place: pathlib.Path, port: int, job_port: int) -> subprocess.Popen:
    rules = (root / "examples/monitoring/rules.yml").resolve()
    (place / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ['{rules}']
scrape_configs:
  - job_name: night
    static_configs: [{{targets: ['127.0.0.1:{job_port}']}}]
""")
    return subprocess.Popen(["prometheus", f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data",
                             f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"])


class Prometheus:
    def __init__(self, port: int):
        self.address = f"http://127.0.0.1:{port}/api/v1"
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, path: str):
        """None: it does not answer yet."""
        try:
            with self.opener.open(f"{self.address}/{path}", timeout=10) as answer:
                return json.load(answer)["data"]
        except (OSError, urllib.error.URLError):
            return None

    def value(self, query: str):
        """Of a query with one result; None: there is none."""
        found = self.ask("query?" + urllib.parse.urlencode({"query": query}))
        return float(found["result"][0]["value"][1]) if found and found["result"] else None

    def health_of_rules(self) -> set:
        found = self.ask("rules")
        return {rule["health"] for group in found["groups"] for rule in group["rules"]} if found else set()


def wait_for(what: str, is_met, processes: list[subprocess.Popen]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_met():
        for one in processes:
            if one.poll() is not None:
                sys.exit(f"{one.args[0]} has ended with {one.returncode} before {what}")
        if time.monotonic() > end:
            sys.exit(f"after {PATIENCE_S} s there is no sign of {what}")
        time.sleep(0.1)


def check(root: pathlib.Path, command: str, place: pathlib.Path, running: list[subprocess.Popen]) -> None:
    job_port, port = free_port(), free_port()
    running.append(start_job(command, place, job_port))
    running.append(start_prometheus(root, place, port, job_port))
    prometheus = Prometheus(port)
    members = 'count(count by (shardwire_member) (increase(shardwire_restore_needed_bytes_total{job="night"}[1m]) > 0))'
    wait_for("bytes that all members restore", lambda: prometheus.value(members) == RANKS, running)
    wait_for("rules that are evaluated", lambda: prometheus.health_of_rules() == {"ok"}, running)
    # On a busy machine, a scrape that comes late leaves no series until the next one.
    builds = "count(count by (shardwire_member) (shardwire_build_info))"
    failures = 'sum(shardwire_restore_duration_seconds_count{error_type!=""})'
    wait_for("a single target", lambda: prometheus.value("count(up)") == 1, running)
    wait_for("the builds of all members", lambda: prometheus.value(builds) == RANKS, running)
    wait_for("restores of which none has failed", lambda: prometheus.value(failures) == 0, running)


def main() -> int:
    if not shutil.which("prometheus"):
        print("SKIPPED: there is no prometheus (Debian: prometheus)")
        return 77
    running: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory() as place:
        try:
            check(pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(place), running)
        finally:
            for one in running:
                one.send_signal(signal.SIGINT)
            for one in running:
                one.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
