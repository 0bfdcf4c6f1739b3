"""MLflow and Weights & Biases hold what a run told them, read back with their own packages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from peer_environments import ENVIRONMENT, peer

ROOT = Path(__file__).parents[2]
RUN = """
import os
from fanfold import Case, MaxTrials, Study, Sweep
from fanfold.summary import Summary
from fanfold import trackers
from fanfold.trackers.mlflow import Mlflow
from fanfold.trackers.wandb import Wandb
from importlib.metadata import EntryPoint

OWN = {"mlflow": "fanfold.trackers.mlflow:Mlflow", "wandb": "fanfold.trackers.wandb:Wandb"}
OWN["otel"] = "fanfold.trackers.otel:Otel"
trackers.known_trackers = lambda: {name: EntryPoint(name, value, trackers.GROUP) for name, value in OWN.items()}
trackers.GRACE = 120.0

async def conclude(run, go):
    return Summary({"held_out": 0.25})

def run(trials, track):
    study = Study(Sweep(range(9)), lambda candidate, case: candidate / 10, stop=MaxTrials(trials), conclude=conclude)
    meta = {"fields": {"model": ["a/b"], "nested": {"rate": 0.1}, "key": os.environ["SOME_API_KEY"]}}
    done = study.run(ledger="runs.db", run="it", track=track, meta=meta)
    done.ledger.close()
    return done.trace
"""


def in_peer(folder: Path, program: str) -> str:
    environment = {
        **ENVIRONMENT,
        "PYTHONPATH": str(ROOT / "src"),
        "HOME": str(folder),
        "SOME_API_KEY": "sk-hush-hush-hush",
    }
    done = subprocess.run(
        [peer("trackers"), "-W", "error::UserWarning:fanfold", "-c", RUN + program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_mlflow_shows_a_run_and_its_resumed_part_as_one(tmp_path: Path) -> None:
    program = """
where = "mlflow:sqlite:///mlflow.db"
first, whole = run(3, where), run(5, where)
from mlflow.tracking import MlflowClient
client = MlflowClient("sqlite:///mlflow.db")
(experiment,) = [each for each in client.search_experiments() if each.name == "fanfold"]
(kept,) = client.search_runs([experiment.experiment_id])
assert kept.info.status == "FINISHED" and kept.info.run_name == "it", kept
assert kept.data.params["model"] == "['a/b']" and kept.data.params["nested.rate"] == "0.1", kept.data.params
assert kept.data.params["key"] == "***", kept.data.params
best = [(point.step, point.value) for point in client.get_metric_history(kept.info.run_id, "best")]
assert best == [(1, 0.0), (2, 0.1), (3, 0.2), (4, 0.3), (5, 0.4)], best
assert kept.data.metrics["summary/held_out"] == 0.25
"""
    in_peer(tmp_path, program)


@pytest.mark.slow
def test_wandb_is_offline_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    program = """
import socket
real, hosts = socket.socket.connect, []
def connect(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1"):
        hosts.append(address)
    return real(self, address)
socket.socket.connect = connect
run(5, "wandb:project")
assert hosts == [], hosts
from pathlib import Path
from wandb.proto import wandb_internal_pb2
(file,) = Path("wandb").glob("offline-run-*/*.wandb")

def records(data):
    # blocks of 32 KiB: a header of 7 bytes before the first record, and before each its checksum, length and kind
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield parts
            parts = b""

steps, summary, config = [], {}, {}
for data in records(file.read_bytes()):
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    if record.HasField("history"):
        row = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        steps.append(float(row["best"]))
    summary |= {item.key or "/".join(item.nested_key): item.value_json for item in record.summary.update}
    config |= {item.key: item.value_json for item in record.run.config.update}
assert steps == [0.0, 0.1, 0.2, 0.3, 0.4], steps
assert summary["summary/held_out"] == "0.25" and summary["reason"], summary
assert config["model"] == '"[\\'a/b\\']"', config
"""
    in_peer(tmp_path, program)


@pytest.mark.slow
def test_spans_are_sent_over_otlp_where_no_provider_is_configured(tmp_path: Path) -> None:
    program = """
import gzip, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
names, paths = [], set()
class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        request = ExportTraceServiceRequest.FromString(body)
        paths.add(self.path)
        names.extend(span.name for sent in request.resource_spans for scope in sent.scope_spans for span in scope.spans)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words): pass
server = HTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=server.serve_forever, daemon=True).start()
run(3, f"otel:http://127.0.0.1:{server.server_port}")
assert paths == {"/v1/traces"}, paths
assert sorted(names) == ["evaluation"] * 3 + ["run", "trial 0", "trial 1", "trial 2"], names
"""
    in_peer(tmp_path, program)
