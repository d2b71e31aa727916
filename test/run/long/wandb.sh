#!/usr/bin/env bash
# `choir report --wandb` of a chain of jobs, read back with the messages of the wandb package (pip
# install wandb; another interpreter: WANDB_PYTHON=...): every step once, in order, with the numbers
# of metrics.jsonl.
. "$(dirname "$0")/../lib/common.sh"
python=${WANDB_PYTHON:-python3}
if ! "$python" -c "import wandb" 2>/dev/null; then skip "W&B" "$python has no wandb package"; exit; fi

train 2 chain fault.enable=true fault.stop_step=7 log.interval=1
train 1 chain log.interval=1
expect "a chain of two jobs" 0 "resumed from"
run 0 report chain --wandb --out offline
expect "its offline run" 0 "offline/offline-run-" "wandb sync"
cat >read.py <<'P'
import json, math, struct, sys, zlib
from wandb.proto import wandb_internal_pb2 as pb
data = open(sys.argv[1], "rb").read()
assert data[:7] == b":W&B" + struct.pack("<HB", 0xBEE1, 0)
at, records, part = 7, [], b""
while at < len(data):
    left = 32768 - at % 32768
    if left < 7:
        at += left
        continue
    crc, size, kind = struct.unpack("<IHB", data[at:at + 7])
    piece = data[at + 7:at + 7 + size]
    assert crc == zlib.crc32(bytes([kind]) + piece)
    part += piece
    if kind in (1, 4):
        record = pb.Record()
        record.ParseFromString(part)
        records.append(record)
        part = b""
    at += 7 + size
kinds = [r.WhichOneof("record_type") for r in records]
assert kinds[:2] == ["header", "run"] and kinds[-2:] == ["summary", "exit"], kinds
assert set(kinds[2:-2]) == {"history"} and [r.num for r in records] == list(range(1, len(records) + 1))
config = {i.key: json.loads(i.value_json) for i in records[1].run.config.update}
assert config["train"]["max_steps"] == 20 and config["model"]["type"] == "gpt"
rows = [{i.nested_key[0]: json.loads(i.value_json) for i in r.history.item} for r in records[2:-2]]
lines = [json.loads(l) for l in open(sys.argv[2])]
lines = [l for l in lines if "event" not in l]
assert [r["_step"] for r in rows] == [l["step"] for l in lines] == list(range(1, 21))
for row, line in zip(rows, lines):
    for key, value in line.items():
        if key != "step":
            assert row[key] == value or (value is None and row[key] == "NaN"), (key, row[key], value)
assert all(a["_timestamp"] <= b["_timestamp"] and a["_runtime"] <= b["_runtime"] for a, b in zip(rows, rows[1:]))
last = {i.key: json.loads(i.value_json) for i in records[-2].summary.update}
assert last["loss"] == lines[-1]["loss"]
print("read back", len(rows), "steps")
P
"$python" read.py offline/*/run-*.wandb chain/metrics.jsonl >out 2>&1
code=$? command="read.py"
expect "wandb's messages hold every step of both jobs" 0 "read back 20 steps"
