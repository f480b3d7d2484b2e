#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What examples/python/opentelemetry_bridge.py hands to the SDK of OpenTelemetry equals the reports of two members."""
import collections
import os
import pathlib
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import shardwire as sw

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples/python"), str(ROOT / "python/tests")]
import opentelemetry_bridge as bridge  # noqa: E402
from ports import free_port  # noqa: E402

PATIENCE_S = 120
STAGES = ["plan", "bind", "move", "verify", "commit"]


def check(fine, what):
    if not fine:
        sys.exit(f"wrong: {what}")


def catalog(rank, held):
    """A row, or a column."""
    entries = sw.Catalog(rank, 2)
    entries.add("w", "", "f64", (2, 2), sw.Layout.chunk(0 if held else 1, 2), np.zeros((1, 2) if held else (2, 1)))
    return entries


def member(rank, port, told):
    session = sw.Session.join(rank=rank, world_size=2, address="127.0.0.1", port=port, run_id="night", transport="shm,tcp",
                              telemetry=told)
    publication = session.publish(catalog(rank, True), step=7)
    restore = session.restore(catalog(rank, False), timeout=PATIENCE_S)
    restore.wait()
    try:
        session.restore(catalog(rank, False), name="none", timeout=0.01).wait()
    except sw.Error:
        pass
    session.barrier(PATIENCE_S)
    publication.retire(PATIENCE_S)
    session.close(PATIENCE_S)
    return restore.report


class Told:
    """Hands updates on. The last one is that of the publication that is gone."""

    def __init__(self, target):
        self.target = target
        self.retired = threading.Event()

    def __call__(self, kind, name, value, attributes):
        self.target(kind, name, value, attributes)
        if name == "shardwire.publication.size" and value < 0:
            self.retired.set()


def points(reader):
    """Of each metric, by its name and its attributes."""
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    found[metric.name, frozenset(point.attributes.items())] = (metric, point)
    return found


def check_metrics(found, report):
    def at(name, **attributes):
        return found[name, frozenset((key.replace("_", "."), value) for key, value in attributes.items())]

    metric, point = at("shardwire.restore.duration", shardwire_operation="restore")
    check(metric.unit == "s" and point.count == 1 and abs(point.sum - report.seconds.wall) < 1e-6, point)
    check(list(point.explicit_bounds) == bridge.BOUNDS_S, point)
    for stage in STAGES:
        took = getattr(report.seconds, stage)
        check(at("shardwire.restore.stage.duration", shardwire_stage=stage)[1].sum >= took, stage)  # the failed one too
    received = collections.Counter()
    for peer in report.peers:
        received[peer.path] += peer.bytes
    for path, count in received.items():
        transport, _, method = path.partition("/")
        metric, point = at("shardwire.io", shardwire_direction="receive", shardwire_transport=transport,
                           shardwire_method=method or transport)
        check(metric.unit == "By" and metric.data.is_monotonic and point.value == count, (path, point))
    metric, point = at("shardwire.publication.active")
    check(not metric.data.is_monotonic and point.value == 0, point)
    check(at("shardwire.publication.step")[1].value == 7, "the step")
    check(at("shardwire.handshake.rejections", error_type="bad_key")[1].value == 0, "a zero from the start")


def check_spans(spans, rank, report):
    of_member = [span for span in spans if span.attributes["shardwire.member"] == rank]
    names = {span.context.span_id: span.name for span in of_member}
    check(all(span.attributes["shardwire.run.id"] == "night" for span in of_member), "the run")
    restored, failed = [span for span in of_member if span.name == "shardwire.restore"]
    check(restored.status.status_code == StatusCode.UNSET and restored.attributes["shardwire.step"] == 7, restored.to_json())
    check(failed.status.status_code == StatusCode.ERROR, failed.to_json())
    check(failed.status.description == failed.attributes["error.type"], failed.to_json())
    wall = report.seconds.wall - report.seconds.join
    check(abs((restored.end_time - restored.start_time) * 1e-9 - wall) <= 1e-6, (restored.to_json(), wall))
    children = [span for span in of_member if span.parent and span.parent.span_id == restored.context.span_id]
    for stage in STAGES:
        took = sum(span.end_time - span.start_time for span in children if span.name == f"shardwire.restore.{stage}") * 1e-9
        check(abs(took - getattr(report.seconds, stage)) <= 1e-6, (stage, took))
    check(sum(span.name == "shardwire.source" for span in children) == 2, [span.to_json() for span in children])
    moves = [span for span in of_member if span.name == "shardwire.source.move"]
    check(sum(span.attributes["shardwire.bytes"] for span in moves) == sum(peer.bytes for peer in report.peers), "the bytes")
    for span in of_member:
        parent = names[span.parent.span_id] if span.parent else None
        state = span.name.startswith(("shardwire.source.", "shardwire.restore."))
        expected = span.name.rpartition(".")[0] if state else {"shardwire.source": "shardwire.restore"}.get(span.name)
        check(parent == expected, (span.name, parent))


def main():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    readers = [InMemoryMetricReader() for _ in range(2)]
    told = [Told(bridge.Metrics(MeterProvider([reader]).get_meter("shardwire"))) for reader in readers]
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(2) as pool:
        os.environ["SHARDWIRE_TRACE"] = f"{place}/t.json"
        port = free_port()
        reports = list(pool.map(member, range(2), [port] * 2, told))
        for rank in range(2):
            bridge.send_spans(f"{place}/t-{rank}.json", provider.get_tracer("shardwire"))
    for rank in range(2):
        check(told[rank].retired.wait(PATIENCE_S), "nothing told of the end")
        check_metrics(points(readers[rank]), reports[rank])
        check_spans(exporter.get_finished_spans(), rank, reports[rank])


if __name__ == "__main__":
    main()
