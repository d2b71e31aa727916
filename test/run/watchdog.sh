#!/usr/bin/env bash
# The rank that delays the others is named: hangs in a phase and in a stage, a rank that is stopped
# or killed; in time, with exit code 5 and the last calls of each rank in RUN/flight. Long phases,
# slow ranks, weights and calls are watched.
. "$(dirname "$0")/lib/common.sh"
quick=(eval.interval=0 checkpoint.interval=0)
timeout=2
hangs() {  # hangs NAME RANKS WORDS... -- OVERRIDE...: ends in time
  local name=$1 ranks=$2 began took words=()
  shift 2
  while [ "$1" != -- ]; do words+=("$1"); shift; done
  shift
  began=$(now_ms)
  train "$ranks" "$name" "${quick[@]}" parallel.timeout=$timeout "$@"
  took=$(($(now_ms) - began))
  expect "$name" 5 "watchdog: rank" "made no progress" "exit code 5" "the last calls of each rank are in $name/flight" \
    "${words[@]}"
  in_time "$name: within its time-out and 7 s" "$took" 9000
}

hangs in_forward 3 "rank 1 is behind, in phase \"step 4: forward\"" "rank 1 (process" "where rank" \
  -- train.micro_batch_size=8 fault.enable=true fault.hang_rank=1 fault.hang_step=4 fault.phase=forward
check "... the first line names the rank and says what to do" has out \
  "choir: watchdog: rank 1 hangs in forward of step 4; the same command starts the run again, because it has no checkpoint yet"
check "... the ranks that it ends promise no save" lacks out "asked to stop"
check "... in one report for the node" test "$(grep -c "made no progress" out)" = 1
check "... each rank has its file" test -s in_forward/flight/rank_0.txt -a -s in_forward/flight/rank_2.txt
check "... the log has the end of the run" has in_forward/log.txt "ended with exit code 5: watchdog: rank"
run 0 runs in_forward
expect "... and the run has failed" 0 "failed"
check "... with its last calls" matches in_forward/flight/rank_1.txt "done +all_reduce #[0-9]+ of dp"
check "... and who waits" matches in_forward/flight/rank_0.txt "waiting +[a-z_]+ #[0-9]+ of"
hangs in_comm 2 "rank 0 (process" "does not continue all_reduce #" "in phase \"step 4: comm\"" \
  -- fault.enable=true fault.hang_rank=0 fault.hang_step=4 fault.phase=comm
hangs in_stage 2 "is the other end of exchange #" "in phase \"step 4: stage 1 of 2, backward of micro-batch" \
  -- parallel.pipeline=2 fault.enable=true fault.hang_rank=1 fault.hang_step=4 fault.phase=backward
timeout=25
hangs in_first_step 2 "(allowed: 1.0 s)" "rank 1 is behind, in phase \"step 1: forward\"" \
  -- watch.first_step=1 fault.enable=true fault.hang_rank=1 fault.hang_step=1 fault.phase=forward

# One of two ranks is stopped from outside: the other one waits, and reports the reason.
start 2 train "$debug" "${small[@]}" run.dir=stopped "${quick[@]}" parallel.timeout=2 train.max_steps=2000000 optimizer.decay_steps=20 \
  log.interval=20
wait_for out "step=20 "
kill -STOP "$(pgrep -P "$pid" -x choir | tail -n 1)"
end 10
expect "a rank is stopped" 5 "stopped by a signal" "exit code 5"

# If the launcher does not end the other ranks, they name the dead one.
export OMPI_MCA_orte_enable_recovery=1
began=$(now_ms)
train 3 killed fault.enable=true fault.kill_rank=1 fault.kill_step=5 parallel.timeout=25 eval.interval=0
took=$(($(now_ms) - began))
check "the way to go on is named, too" has out "run the same command again to continue from the last checkpoint"
check "a killed rank is named" matches out "sees that rank 1 \(process [0-9]+\) has died, in phase"
check "... first, with what to do" matches out "^choir: watchdog: rank 1 \\(process [0-9]+\\) died in [a-z]+ of step 5; the same command starts the run again"
in_time "a killed rank is named: within 7 s" "$took" 7000
unset OMPI_MCA_orte_enable_recovery

train 2 watched "${quick[@]}" parallel.timeout=30 watch.calls=true watch.weights=5 watch.ranks=10
expect "calls, weights and ranks are watched" 0 "step="
check "... in the metrics" matches watched/metrics.jsonl '"compute":\{"steps":10,"p10":[0-9.e-]+,"p50":'
train 2 plain "${quick[@]}" parallel.timeout=30
check "... without a trace in the numbers" same "losses watched" "losses plain"
train 2 slow fault.enable=true fault.slow_rank=1 fault.slow_step=2 fault.slow_ms=30 watch.ranks=5
check "a rank far above the median is logged, with the time" matches out '^\[[0-9 :.-]+\]\[I\] computing time of the ranks in a step.*; slowest: rank 1 on '
expect "the summary names a slow rank" 0 "  diagnosis        slow rank: rank 1 on " "of its time outside forward and backward"

# A start that takes seconds: longer than allowed, or so long that it is mentioned.
slow=(model.n_layer=1500 model.n_embd=2 model.n_head=1 train.max_steps=1 "${quick[@]}")
train 1 starts "${slow[@]}" watch.start=0.1
expect "a start that takes longer than watch.start" 5 "watchdog: rank 0" "(allowed: 100 ms)"
train 1 silent fault.enable=true fault.slow_rank=0 fault.slow_step=2 fault.slow_ms=600 train.max_steps=2 "${quick[@]}"
check "a step that takes its time is not mentioned" lacks out "is still in phase"
train 1 mentioned fault.enable=true fault.slow_rank=0 fault.slow_step=2 fault.slow_ms=600 train.max_steps=2 "${quick[@]}" \
  watch.still=0.2
expect "... mentioned after watch.still" 0 "rank 0 on" "is still in phase" "summary:"
