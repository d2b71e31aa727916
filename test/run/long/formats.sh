#!/usr/bin/env bash
# The formats for other programs, each read back by its own public tool: MLPerf's compliance checker,
# prometheus_client, W&B and MLflow offline with live_upload.py beside a training. The packages come from
# FORMATS_PYTHON (an interpreter with `pip install mlperf-logging prometheus_client wandb mlflow-skinny`); a
# missing one is a skip.
. "$(dirname "$0")/../lib/common.sh"
python=${FORMATS_PYTHON:-python3}
has() { "$python" -c "import $1" 2>/dev/null; }
yes 'the quick brown fox jumps over the lazy dog' | head -n 3000 >again.txt

run 0 train "$debug" 'data.train=["again.txt"]' run.dir=runs/a run.name=a train.max_steps=400 eval.interval=100 log.interval=20 \
  log.prometheus=a.prom optimizer.learning_rate=3e-3
expect "a run that learns its text" 0 "summary:"

# --- MLPerf
if has mlperf_logging; then
  run 0 report runs/a --format mllog --out a.mllog --set submission_org=choir
  expect "lines for MLPerf, but for a number that the run did not record" 0 "a.mllog (" "eval_samples, which MLPerf's checker requires, is left out"
  run 0 report runs/a --format mllog --out a.mllog --set submission_org=choir --set eval_samples=96
  expect "lines for MLPerf" 0 "a.mllog ("
  for ruleset in 5.1.0 6.1.0; do
    "$python" -m mlperf_logging.compliance_checker --ruleset $ruleset --log_output checker.log a.mllog >out 2>&1
    code=$? command="compliance_checker --ruleset $ruleset"
    expect "the public checker accepts them, rules $ruleset" 0 "SUCCESS"
  done
  # A run that did not reach the target of the benchmark is refused, so the checker has read the losses.
  run 0 train "$debug" 'data.train=["again.txt"]' run.dir=runs/early run.name=early train.max_steps=2 eval.interval=1
  run 0 report runs/early --format mllog --out early.mllog
  "$python" -m mlperf_logging.compliance_checker --log_output checker.log early.mllog >out 2>&1
  check "... and refuses a run whose loss is too high" lacks out "SUCCESS"
else skip "MLPerf" "$python has no mlperf_logging package"; fi

# --- Prometheus
if has prometheus_client; then
  cat >prom.py <<'P'
import json, sys
from prometheus_client.parser import text_string_to_metric_families
samples = {s.name: (s.labels, s.value) for f in text_string_to_metric_families(open(sys.argv[1]).read()) for s in f.samples}
last = [json.loads(l) for l in open(sys.argv[2])]
last = [l for l in last if "loss" in l][-1]
assert samples["choir_train_loss"] == ({"run": "runs/a"}, last["loss"]), samples
assert samples["choir_step"][1] == last["step"] == 400 and samples["choir_val_loss"][1] == last["val_loss"]
print("read back", len(samples), "gauges")
P
  "$python" prom.py a.prom runs/a/metrics.jsonl >out 2>&1
  code=$? command="prom.py"
  expect "prometheus_client reads the numbers of the last line" 0 "read back"
else skip "Prometheus" "$python has no prometheus_client package"; fi

# --- live, beside a training
live() {  # live SERVICE RUN OPTION...
  "$python" "$root/jobs/live_upload.py" "$2" --to "$1" --every 0.2 "${@:3}" >live.out 2>&1
}
beside() {  # beside SERVICE RUN: a training, and an upload that follows it
  start 0 train "$debug" 'data.train=["again.txt"]' run.dir="runs/$2" run.name="$2" train.max_steps=300 eval.interval=0 log.interval=10
  wait_for "runs/$2/metrics.jsonl" '"step":1,'
  live "$1" "runs/$2"
  code=$? command="live_upload.py --to $1"
  cp live.out live_out
  end 60
  cp live_out out
  command="live_upload.py --to $1"
  expect "$1 takes every line of a run that trains" 0 "31 lines of runs/$2 up to step 300"
}
if has wandb; then
  export WANDB_MODE=offline WANDB_SILENT=true
  beside wandb w
  check "... into an offline run" test -n "$(ls runs/w/wandb/offline-run-*/run-*.wandb)"
  check "... with dist_info in its configuration" grep -aq WORLD_SIZE_TOTAL runs/w/wandb/offline-run-*/run-*.wandb
else skip "W&B live" "$python has no wandb package"; fi
if has mlflow; then
  export MLFLOW_TRACKING_URI=file://$PWD/mlruns MLFLOW_ALLOW_FILE_STORE=true
  beside mlflow m
  live mlflow runs/m --once
  cat >flow.py <<'P'
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient()
runs = client.search_runs([client.get_experiment_by_name("choir").experiment_id])
assert len(runs) == 1, "a second start continues the same run"
run = runs[0]
lines = [json.loads(l) for l in open(sys.argv[1])]
lines = [l for l in lines if "loss" in l]
history = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "loss")}
assert history == {l["step"]: l["loss"] for l in lines}
assert run.info.run_name == "m" and run.data.params["dist_info.WORLD_SIZE_TOTAL"] == "1"
assert run.data.params["train.max_steps"] == "300" and run.info.status == "FINISHED"
print("read back", len(history), "steps")
P
  "$python" flow.py runs/m/metrics.jsonl >out 2>&1
  code=$? command="flow.py"
  expect "MLflow has the numbers, the deck and dist_info of one run" 0 "read back 31 steps"
  MLFLOW_TRACKING_URI=http://127.0.0.1:9 MLFLOW_HTTP_REQUEST_MAX_RETRIES=0 timeout 120 "$python" "$root/jobs/live_upload.py" runs/m --to mlflow --once >out 2>&1
  code=$? command="live_upload.py without a server"
  expect "a service that does not answer" 5 "did not take the data" "Training goes on"
else skip "MLflow live" "$python has no mlflow package"; fi
