#!/usr/bin/env bash
# A stage of a pipeline that throws, hangs or is killed in the middle of a step: all ranks stop in
# time, the culprit, its phase and its stage are named, and the last checkpoint stays loadable.
. "$(dirname "$0")/lib/common.sh"
fixed=(model.n_layer=4 parallel.pipeline=4 parallel.timeout=2 checkpoint.interval=4 eval.interval=0 checkpoint.async=false)
loadable() {  # loadable NAME RUN
  run 0 inspect "$2" --verify
  expect "$1: the checkpoint before it is whole" 0 "   4 " "valid (latest)"
}
for stage in 0 1 3; do
  began=$(now_ms)
  train 4 "throws$stage" "${fixed[@]}" fault.enable=true fault.phase=backward fault.throw_rank=$stage fault.throw_step=6
  took=$(($(now_ms) - began))
  expect "stage $stage throws in backward" 5 "[rank $stage/" "step 6: stage $stage of 4, backward of micro-batch" \
    "rank $stage throws in backward of step 6"
  in_time "stage $stage: all stop within 9 s" "$took" 9000
  loadable "... throws" "throws$stage"

  began=$(now_ms)
  train 4 "hangs$stage" "${fixed[@]}" fault.enable=true fault.phase=backward fault.hang_rank=$stage fault.hang_step=6
  took=$(($(now_ms) - began))
  expect "stage $stage hangs in backward" 5 "watchdog: rank" "made no progress" "exit code 5" \
    "rank $stage is behind, in phase \"step 6: stage $stage of 4, backward of micro-batch"
  in_time "stage $stage, which hangs: all stop within 11 s" "$took" 11000
  loadable "... hangs" "hangs$stage"
done
train 4 killed "${fixed[@]}" parallel.schedule=zb-h1 fault.enable=true fault.phase=forward fault.kill_rank=2 fault.kill_step=6
expect_killed "stage 2 is killed in forward"
loadable "... killed" killed
train 4 killed "${fixed[@]}" parallel.schedule=zb-h1 train.max_steps=8
expect "... and goes on from there" 0 "resumed from killed/checkpoints/step_00000004" "8 (4 now)"
# Between steps, when no stage waits inside an exchange yet.
train 4 early "${fixed[@]}" fault.enable=true fault.hang_rank=1 fault.hang_step=6
expect "a stage hangs before a step" 5 "watchdog: rank" "rank 1 is behind"
