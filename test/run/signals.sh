#!/usr/bin/env bash
# Signals while generated code computes: none corrupts the heap, each ends the run as promised, and
# a continued run continues bitwise. test/run/long/signals.sh does this hundreds of times.
. "$(dirname "$0")/lib/common.sh"
. "$root/test/run/lib/signals.sh"
ranks=1 steps=30
train 1 straight "${wide[@]}" train.max_steps=$steps
expect "straight through" 0 "summary:"

# One thread receives the signals; computing threads never do, also those of a team.
OMP_NUM_THREADS=2 start 2 train "$debug" "${small[@]}" run.dir=masks "${wide[@]}" train.max_steps=100000
wait_for out "step=3 "
for process in $(ranks_of "$pid"); do
  masks=$(masks_of "$process")
  check "one thread takes signals ($masks)" matches <(echo "$masks") '^1 open, ([2-9]|[1-9][0-9]+) closed, 0 other$'
done
kill -USR1 "$pid"
end 15

for round in 1 2; do
  start 0 train "$debug" "${small[@]}" run.dir="storm$round" "${wide[@]}" train.max_steps=100000
  wait_for out "["
  sleep "0.$((round * 3))"
  send 200 $forever USR1 "$pid"
  end 15
  expect "a storm of SIGUSR1" 75 "SIGUSR1" "checkpoint storm$round/checkpoints/step_"
  at=$(losses "storm$round" | wc -l)
  [ "$at" -lt $steps ] || { train 1 straight "${wide[@]}" train.max_steps=$((at + 5)); steps=$((at + 5)); }
  check "... continues bitwise" is_continued "storm$round" straight $steps
done

# Foreign handlers receive the signals that libraries, profilers, terminals and batch systems send.
"${CC:-cc}" -O1 -shared -fPIC -o handlers.so "$root/test/run/lib/foreign_handlers.c" -lrt
export FOREIGN_COUNTS=$PWD/counts
LD_PRELOAD=$PWD/handlers.so start 0 train "$debug" "${small[@]}" run.dir=handlers "${wide[@]}" train.max_steps=$steps
wait_for out "["
send 200 $forever CHLD,WINCH,CONT "$pid" &
end 30
wait
expect "handlers of others" 0 "summary:"
check "... were called: $(cat counts 2>/dev/null)" matches counts '^[0-9]{3,} [0-9]{3,} [0-9]{3,} [0-9]{3,}$'
check "... and changed no loss" same_losses straight handlers
check "... and no bit of the checkpoint" same_tensors straight handlers
