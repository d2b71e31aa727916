#!/usr/bin/env python3
"""Uploads the metrics of a run of choir while it trains, to Weights & Biases or MLflow.

    jobs/live_upload.py RUN --to wandb|mlflow [--project NAME] [--every SECONDS] [--once]

It runs beside the training, on any node that sees the run directory and has a network: it follows
RUN/metrics.jsonl, so training never waits for it and never fails because of it. Only that node
needs Python and `pip install wandb` or `pip install mlflow`. Servers are named as these packages
want it (`wandb login`, WANDB_BASE_URL, WANDB_MODE=offline, MLFLOW_TRACKING_URI). A second start on
the same run continues the same remote run. The configuration holds the deck, section by section,
and dist_info. It ends when the run has ended, or with --once after the lines that are there.
Exit codes: 0 done, 2 wrong call, 3 no run, 5 the service refused or did not answer.
"""
import argparse
import hashlib
import json
import math
import os
import sys
import time

ATTEMPTS = 5  # of a request, with pauses of 2, 4, 8, 16 s


def fail(code, message):
    print(f"live_upload: {message}", file=sys.stderr)
    sys.exit(code)


class MetricLines:
    """New complete lines of metrics.jsonl. A resumed run may rewrite the file with fewer lines."""

    def __init__(self, path):
        self.path, self.inode, self.at = path, None, 0

    def read(self):
        try:
            with open(self.path, "rb") as file:
                state = os.fstat(file.fileno())
                if state.st_ino != self.inode or state.st_size < self.at:
                    self.inode, self.at = state.st_ino, 0
                file.seek(self.at)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self.at += end
        lines = []
        for line in data[:end].splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                continue  # a damaged line
        return [line for line in lines if isinstance(line, dict)]


def numbers(line):
    """The numbers of a line of a step, without those that are not finite."""
    return {key: float(value) for key, value in line.items()
            if key != "step" and isinstance(value, (int, float)) and math.isfinite(value)}


def configuration(deck, start):
    sections = {key: value for key, value in deck.items() if key not in ("sources", "derived")}
    return {**sections, "dist_info": start.get("dist_info", {}), "provenance": start.get("provenance", {})}


def flat(value, prefix=""):
    if not isinstance(value, dict):
        return {prefix: value}
    return {name: leaf for key, inner in value.items()
            for name, leaf in flat(inner, f"{prefix}.{key}" if prefix else key).items()}


class Wandb:
    def __init__(self, options, name, identity, config):
        import wandb
        self.run = wandb.init(project=options.project, name=name, id=identity, resume="allow",
                              config=config, dir=options.run)

    def log(self, step, values):
        self.run.log(values, step=step)

    def finish(self, failed):
        self.run.finish(exit_code=1 if failed else 0)


class Mlflow:
    def __init__(self, options, name, identity, config):
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient
        self.metric, self.client = Metric, MlflowClient()
        found = self.client.get_experiment_by_name(options.project)
        experiment = found.experiment_id if found else self.client.create_experiment(options.project)
        runs = self.client.search_runs([experiment], f"tags.choir_run = '{identity}'")
        if runs:
            self.id = runs[0].info.run_id
            self.client.update_run(self.id, "RUNNING")
            return
        self.id = self.client.create_run(experiment, run_name=name, tags={"choir_run": identity}).info.run_id
        params = [Param(key, str(value)[:500]) for key, value in flat(config).items()]
        for i in range(0, len(params), 100):  # the most that a request may hold
            self.client.log_batch(self.id, params=params[i:i + 100])

    def log(self, step, values):
        now = int(1000 * time.time())
        # MLflow allows / but not every sign that a name of a set may have.
        name = lambda key: "".join(c if c.isalnum() or c in "_-./ " else "_" for c in key)
        self.client.log_batch(self.id, metrics=[self.metric(name(k), v, now, step) for k, v in values.items()])

    def finish(self, failed):
        self.client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


def with_patience(action):
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return action()
        except ImportError:
            raise
        except Exception as error:  # the packages have no common class of errors
            if attempt == ATTEMPTS:
                fail(5, f"the service did not take the data after {ATTEMPTS} attempts: {error}. "
                        "Training goes on; start this program again later, it continues")
            print(f"live_upload: {error}; trying again in {2 ** attempt} s", file=sys.stderr)
            time.sleep(2 ** attempt)


def ended(run):
    """A run holds the file in_use while it trains."""
    return not os.path.exists(os.path.join(run, "in_use"))


def main():
    parser = argparse.ArgumentParser(prog="live_upload.py", description=__doc__.split("\n\n")[0],
                                     epilog="See the head of this file for servers and exit codes.")
    parser.add_argument("run", help="run directory (run.dir of the deck)")
    parser.add_argument("--to", required=True, choices=("wandb", "mlflow"), help="the service")
    parser.add_argument("--project", default="choir", help="project, or experiment of MLflow (default: choir)")
    parser.add_argument("--every", type=float, default=10, help="seconds between two looks (default: 10)")
    parser.add_argument("--once", action="store_true", help="upload the lines that are there, and end")
    options = parser.parse_args()
    deck_file = os.path.join(options.run, "deck.json")
    try:
        with open(deck_file, encoding="utf-8") as file:
            deck = json.load(file)
    except (OSError, ValueError) as error:
        fail(3, f"'{options.run}' is not a run directory: {deck_file}: {error}")
    if not isinstance(deck, dict) or "run" not in deck:
        fail(3, f"{deck_file} is not the deck of a run of choir")
    lines = MetricLines(os.path.join(options.run, "metrics.jsonl"))
    waiting, start = lines.read(), None
    while not start:
        start = next((line for line in waiting if line.get("event") == "start"), None)
        if start:
            break
        if options.once or ended(options.run):
            fail(3, f"'{options.run}' has not started to train: its metrics.jsonl has no start record")
        time.sleep(options.every)
        waiting += lines.read()
    name = deck["run"].get("name") or os.path.basename(os.path.abspath(options.run))
    # The same run has the same identity after every start of this program.
    identity = hashlib.sha1(f"{name} {start.get('time')}".encode()).hexdigest()[:12]
    service = Wandb if options.to == "wandb" else Mlflow
    try:
        remote = with_patience(lambda: service(options, name, identity, configuration(deck, start)))
    except ImportError as error:
        fail(2, f"{error}: pip install {options.to}, on this node only")
    sent, last, failed = 0, 0, False
    try:
        while True:
            # Asked before the look, because a run may write its last lines and end between the two.
            over = options.once or ended(options.run)
            waiting += lines.read()
            for line in waiting:
                if "event" in line or not isinstance(line.get("step"), int) or "loss" not in line:
                    continue
                if line["step"] <= last:
                    continue  # a resumed run repeats steps
                last = line["step"]
                with_patience(lambda: remote.log(last, numbers(line)))
                sent += 1
            if over:
                break
            waiting = []
            time.sleep(options.every)
    except KeyboardInterrupt:
        failed = True
    with_patience(lambda: remote.finish(failed))
    print(f"live_upload: {sent} lines of {options.run} up to step {last}")


main()
