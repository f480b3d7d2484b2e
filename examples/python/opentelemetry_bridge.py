# SPDX-License-Identifier: Apache-2.0
"""Hands the metrics of a member to OpenTelemetry as instruments, and its trace as spans (package opentelemetry-sdk, 1.45).

    session = sw.Session.join(..., telemetry=Metrics(metrics.get_meter("shardwire")))
    ...
    session.close(60)
    send_spans("trace-3.json", trace.get_tracer("shardwire"))  # with SHARDWIRE_TRACE=trace.json, in member 3

Metrics are those of one member. The resource of the program's provider names it: `service.instance.id` is `<run id>/<member>`.
"""

import json
import pathlib

from opentelemetry import trace

UNITS = {"duration": "s", "io": "By", "needed": "By", "overhead": "By", "size": "By", "slowdown": "1", "timestamp": "s"}
UP_AND_DOWN = {"shardwire.restore.active", "shardwire.publication.active", "shardwire.publication.size"}
BOUNDS_S = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600]


class Metrics:
    """For the option `telemetry` of one session."""

    def __init__(self, meter):
        self.meter = meter
        self.calls = {}  # by the name of the instrument

    def __call__(self, kind, name, value, attributes):
        if name not in self.calls:
            self.calls[name] = self.make(kind, name)
        self.calls[name](value, attributes)

    def make(self, kind, name):
        unit = UNITS.get(name.rpartition(".")[2], "")
        if kind == "histogram":
            return self.meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=BOUNDS_S).record
        if kind == "gauge":
            return self.meter.create_gauge(name, unit).set
        if name in UP_AND_DOWN:
            return self.meter.create_up_down_counter(name, unit).add
        return self.meter.create_counter(name, unit).add


# Their parents have rows of their own. Stages and states stand behind theirs in the same row.
PARENTS = {"shardwire.restore": "shardwire.exchange", "shardwire.source": "shardwire.restore",
           "shardwire.source.move": "shardwire.source"}
SAME = ("shardwire.publication.name", "shardwire.source.rank")


def end_us(event):
    return event["ts"] + event["dur"]


def is_parent(one, event):
    if one["name"] != PARENTS.get(event["name"]) or end_us(one) < end_us(event):
        return False
    return all(one["args"].get(key, value) == value for key, value in event["args"].items() if key in SAME)


def groups_of(events):
    """Lists of an operation or a source, and what follows it in its row."""
    groups, latest = [], {}
    for event in events:
        if event["ph"] != "X":
            continue
        group = latest.get(event["tid"])
        if group and event["name"].startswith(group[0]["name"] + "."):
            group.append(event)
        else:
            latest[event["tid"]] = [event]
            groups.append(latest[event["tid"]])
    return sorted(groups, key=lambda group: (group[0]["ts"], -group[0]["dur"]))


def send_spans(path, tracer, context=None):
    """Sends the spans of the file of one member. Those without a parent get that of `context`, such as a step of the training."""
    content = json.loads(pathlib.Path(path).read_text())
    head = content["otherData"]

    def send(event, within):
        began_ns = head["shardwire.began_unix_ns"] + event["ts"] * 1000
        attributes = {key: value for key, value in event["args"].items() if key != "seconds" and value is not None}
        attributes |= {key: head[key] for key in ("shardwire.run.id", "shardwire.member")}
        span = tracer.start_span(event["name"], within, attributes=attributes, start_time=began_ns)
        if error := attributes.get("error.type"):
            span.set_status(trace.StatusCode.ERROR, error)
        span.end(began_ns + round(event["args"]["seconds"] * 1e9))
        return span

    running = []
    for first, *others in groups_of(content["traceEvents"]):
        running = [(one, span) for one, span in running if end_us(one) >= first["ts"]]
        parent = next((span for one, span in reversed(running) if is_parent(one, first)), None)
        span = send(first, context if parent is None else trace.set_span_in_context(parent))
        running.append((first, span))
        for event in others:
            send(event, trace.set_span_in_context(span))
