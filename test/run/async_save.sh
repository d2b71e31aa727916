#!/usr/bin/env bash
# checkpoint.async: saves are written while training continues, and nothing is lost.
# checkpoint.interval: auto.
. "$(dirname "$0")/lib/common.sh"
common=(optimizer.decay_steps=40 checkpoint.keep=0 eval.interval=0)
long=(train.max_steps=40 "${common[@]}")
often=("${long[@]}" checkpoint.interval=2)

train 2 waits "${often[@]}" checkpoint.async=false
expect "without async" 0 "checkpoint waits/checkpoints/step_00000040"
check "... nothing is copied" lacks out "saving in background"
train 2 async "${often[@]}" checkpoint.async=true
expect "with async" 0 "step 2: saving in background (paused" "checkpoint async/checkpoints/step_00000002" "; stall " \
  "checkpoint async/checkpoints/step_00000040"
check "... its snapshot is in the memory plan" has async/start.txt "checkpoint snapshot"
check "every step was saved" diff <(ls waits/checkpoints) <(ls async/checkpoints)
check "the losses, bit by bit" same_losses waits async
for step in 02 20 38 40; do
  check "the checkpoint of step $step, bit by bit" same_tensors "waits/checkpoints/step_000000$step" "async/checkpoints/step_000000$step"
done
check "stall, drain and commit are in the metrics" test 20 = "$(grep -cE \
  '^\{"event":"save","step":[0-9]+,"saved":true,.*"stall":[0-9.]+,"drain":[0-9.]+,.*"commit":[0-9.]+,"total":' async/metrics.jsonl)"
check "19 of them were asynchronous" test 19 = "$(grep -c '"async":true' async/metrics.jsonl)"

# The run is killed before the thread copies, or while it writes: up to the rename the checkpoint
# before counts, afterwards the new one.
for instant in copy write latest; do
  name=killed_$instant
  train 2 "$name" "${common[@]}" train.max_steps=6 checkpoint.interval=2 checkpoint.async=true
  train 2 "$name" "${often[@]}" checkpoint.async=true fault.enable=true fault.kill_in_save=$instant
  expect_killed "killed at $instant of an asynchronous save" "resumed from $name/checkpoints/step_00000006"
  train 2 "$name" "${often[@]}"
  expect "... continues" 0 "resumed from $name/checkpoints/step_0000000"
  check "... to the bits of a run without" same_tensors waits "$name"
done

train 2 full "${often[@]}" checkpoint.async=true fault.enable=true fault.disk_full_step=8
expect "a full disk behind training's back" 0 "checkpoint of step 8 FAILED, training goes on" "no space left on device" \
  "step_00000040 (1 failed)"
check "... does not count as saved" absent full/checkpoints/step_00000008
check "... and is in the metrics" matches full/metrics.jsonl '"event":"save","step":8,"saved":false'

train 2 stopped "${often[@]}" checkpoint.async=true fault.enable=true fault.stop_step=9
expect "a stop request" 75 "checkpoint stopped/checkpoints/step_00000008" "checkpoint stopped/checkpoints/step_00000009"
train 2 stopped "${often[@]}"
check "... continues to the same bits" same_tensors waits stopped
train 2 throws "${often[@]}" checkpoint.async=true fault.enable=true fault.nan_step=9 train.nan_policy=stop
expect "an error of all ranks waits for the save in flight" 4 "checkpoint throws/checkpoints/step_00000008"

train 2 auto "${long[@]}" checkpoint.interval=auto checkpoint.mtbf=0.0001
expect "checkpoint.interval=auto" 0 "step 10: saving in background" "checkpoint.interval auto: a save costs" \
  "a failure comes every 360 ms" "the next is step"
check "... changes no bit" same_tensors waits auto
train 2 advised "${common[@]}" checkpoint.interval=1 checkpoint.mtbf=1000 train.max_steps=4
expect "a run that is shorter than the best interval" 0 "4 (4 now)"
check "... has no advice about it" test "$(grep -c advice: out)" = 0

three=("${common[@]}" train.max_steps=4 checkpoint.interval=2)
train 3 waits3 "${three[@]}" checkpoint.async=false
train 3 async3 "${three[@]}" checkpoint.async=true
expect "3 ranks" 0 "step 2: saving in background (paused" "checkpoint async3/checkpoints/step_00000004"
check "... the checkpoint on the way, bit by bit" same_tensors waits3/checkpoints/step_00000002 async3/checkpoints/step_00000002
check "... and the last" same_tensors waits3 async3

# The walltime is so short that even a minimal save takes a tenth of it: the first step is saved,
# whatever comes after.
train 2 early "${common[@]}" train.max_steps=1000000 checkpoint.interval=900000 run.walltime=0.9 run.walltime_margin=0.1
expect "a save before the first deadline" 75 "run.walltime: the first save, of" "checkpoint early/checkpoints/step_00000001 ("
check "... of the first step" matches early/metrics.jsonl '"event":"save","step":1,"saved":true'

train 1 short checkpoint.interval=-1
expect "an interval below 0" 2 "checkpoint.interval"
train 1 word checkpoint.async=maybe
expect "an unknown word" 2 "checkpoint.async" "auto" "true" "false"

# choir bench checkpoint
run 2 bench checkpoint --bytes 3000000 --rounds 2 --folder . --json bench.json
expect "bench checkpoint" 0 "VALID: 6 accesses, 0 wrong elements" "bar: stall of an asynchronous save, share of its whole time" \
  "of a step: not judged" "every write includes its fsync" "asked to forget the file"
check "... has its rows" test 6 = "$(grep -o '"access":"[a-z]*","ranks":2,"bytes":3000000' bench.json | wc -l)"
check "... leaves nothing" eval '! ls -d choir_bench_checkpoint_* 2>/dev/null'
run 1 bench checkpoint --bytes 3000000 --rounds 1 --baseline bench.json
expect "... on other ranks nothing is compared" 1 "nothing was measured in both runs"
run 3 bench checkpoint "$debug" "${small[@]}" --rounds 1
expect "bench checkpoint of a deck" 0 "VALID: 6 accesses" "steps while a save is in flight" "of a step of "
run 2 bench checkpoint --bytes 3000000 --folder nowhere
expect "... into no folder" 6 "cannot make the directory" "No such file or directory" "--folder DIR"
( trap "" XFSZ; ulimit -f 30000; run 0 bench checkpoint --bytes 40000000 --rounds 1 >/dev/null 2>&1; echo "$code" >code )
code=$(cat code) command="choir bench checkpoint, files limited to 30000 blocks"
expect "... where a write fails on the way" 6 "File too large"
check "... and leaves nothing" eval '! ls -d choir_bench_checkpoint_* 2>/dev/null'
run 1 bench checkpoint "$debug" --bytes 3000000
expect "... of a deck and of bytes" 2 "leave one of the two out"
