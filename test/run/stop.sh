#!/usr/bin/env bash
# Ends before the last step: stop requests save and exit with 75, failures are named and have their
# exit codes, and nothing hangs.
. "$(dirname "$0")/lib/common.sh"
long=(train.max_steps=2000000 optimizer.decay_steps=20 log.interval=20 eval.interval=0 checkpoint.interval=1000000)
# MPICH's mpiexec before 4.1 forgets how ranks ended if it has forwarded a signal to them
# (jobs/lib/job.sh handles this, too).
remember() { case $code:${MPIEXEC:-} in 0:*mpich) code=$1 ;; esac; }
continues() {  # continues NAME RUN
  train 2 "$2" "${long[@]}" fault.enable=true fault.stop_step=$(($(sed -nE 's/.*"step":([0-9]+).*/\1/p' "$2/metrics.jsonl" | tail -n 1) + 30))
  expect "$1: continues" 75 "resumed from $2/checkpoints/step_"
}

start 2 train "$debug" "${small[@]}" run.dir=usr1 "${long[@]}"
wait_for out "step=20 "
kill -USR1 "$pid"
end 15
remember 75
expect "SIGUSR1 to mpiexec" 75 " left, at " "stopping after step" "SIGUSR1" "checkpoint usr1/checkpoints/step_" \
  "run the same command again to continue"
continues SIGUSR1 usr1

start 0 train "$debug" "${small[@]}" run.dir=usr1_single "${long[@]}"
wait_for out "step=20 "
kill -USR1 "$pid"
end 15
expect "SIGUSR1 without a launcher" 75 "SIGUSR1"

start 2 train "$debug" "${small[@]}" run.dir=file "${long[@]}"
wait_for out "step=20 "
touch file/stop_now
end 15
expect "a stop_now file" 75 "stop file file/stop_now" "checkpoint file/checkpoints/step_"
continues "stop_now" file

train 2 never checkpoint.interval=0 fault.enable=true fault.stop_step=3
expect "a stop is saved though checkpoint.interval is 0" 75 "checkpoint never/checkpoints/step_00000003"

began=$(now_ms)
train 2 walltime "${long[@]}" run.walltime=3 run.walltime_margin=1
took=$(($(now_ms) - began))
expect "the walltime" 75 "walltime of" "checkpoint walltime/checkpoints/step_"
in_time "the walltime: within 5 s" "$took" 5000

train 2 request fault.enable=true fault.stop_step=7
expect "a stop request at step 7" 75 "stopping after step 7" "step_00000007"
train 2 request
expect "... continues" 0 "resumed from request/checkpoints/step_00000007" "20 (13 now)"
train 2 straight
check "... to the bits of straight through" same_tensors straight request

# Only rank 1 gets the request: rank 0, which writes the log, nevertheless knows the reason.
start 2 train "$debug" "${small[@]}" run.dir=one_asked "${long[@]}"
wait_for out "step=20 "
for one in $(pgrep -x choir); do
  ! tr '\0' '\n' <"/proc/$one/environ" | grep -qxE "(OMPI_COMM_WORLD|PMI)_RANK=1" || ! tr '\0' ' ' <"/proc/$one/cmdline" | grep -q one_asked || kill -USR1 "$one"
done
end 10
expect "SIGUSR1 to one rank alone stops all" 75 "stopping after step" ": asked by SIGUSR1 (" "checkpoint one_asked/checkpoints/step_"

for signal in TERM INT; do
  start 2 train "$debug" "${small[@]}" run.dir="stop_$signal" "${long[@]}"
  wait_for out "step=20 "
  began=$(now_ms)
  kill -"$signal" "$pid"
  end 10
  took=$(($(now_ms) - began))
  remember 1
  check "SIG$signal to mpiexec stops it (exit code $code)" eval "[ $code != 0 ] && [ $code != 124 ]"
  in_time "SIG$signal to mpiexec: within 3.5 s" "$took" 3500
  check "... after a save, although there was none before" matches out "checkpoint stop_$signal/checkpoints/step_"
done
start 0 train "$debug" "${small[@]}" run.dir=term_single "${long[@]}"
wait_for out "step=20 "
began=$(now_ms)
kill -TERM "$pid"
end 10
took=$(($(now_ms) - began))
expect "SIGTERM without a launcher saves, because a save is quick" 75 "stopping after step" "SIGTERM" "checkpoint term_single/checkpoints/step_"
in_time "SIGTERM without a launcher: within a second" "$took" 1000
slow=(fault.enable=true fault.slow_rank=0 fault.slow_step=21 fault.slow_ms=2000)
start 0 train "$debug" "${small[@]}" run.dir=answered "${long[@]}" "${slow[@]}"
wait_for out "step=20 "
kill -TERM "$pid"
check "SIGTERM is answered at once, in a step of two seconds" wait_for out "choir: asked to stop: the run stops after this step"
check "... with the way that always waits for the save" has out "\`touch answered/stop_now\`"
check "... before that step ends" lacks out "stopping after step"
end 10
expect "... after which the run saves" 75 "stopping after step" "checkpoint answered/checkpoints/step_"
rm -f stdout
run_broken stop-unspoken 0 train "$debug" "${small[@]}" run.dir=silent "${long[@]}" "${slow[@]}" &
job=$!
wait_for stdout "step=20 "
pkill -TERM -P "$job"
wait "$job"
check "... a program that does not answer is noticed" eval 'has stdout "stopping after step" && lacks stderr "asked to stop"'
start 0 train "$debug" "${small[@]}" run.dir=int_single "${long[@]}"
wait_for out "step=20 "
kill -INT "$pid"
end 10
expect "Ctrl-C without a launcher saves" 75 "stopping after step" "SIGINT" "checkpoint int_single/checkpoints/step_" \
  "run the same command again to continue"

# An evaluation of an hour is left between two micro-batches.
endless=(train "$root/inputs/verify_gpt.json" train.global_batch_size=2 eval.interval=2 eval.batches=100000000)
start 0 "${endless[@]}" run.dir=evaluates
check "a long evaluation says how far it is" wait_for out "evaluation: 0 %, "
kill -TERM "$pid"
began=$(now_ms)
end 10
took=$(($(now_ms) - began))
expect "SIGTERM in an evaluation" 75 "the evaluation after step 2 is left unfinished" "SIGTERM" "checkpoint evaluates/checkpoints/step_00000002"
in_time "... within a second" "$took" 1000
start 2 "${endless[@]}" run.dir=asked_in_evaluation
wait_for out "evaluation: 0 %, "
touch asked_in_evaluation/stop_now
end 20
expect "a stop_now file in an evaluation of two ranks" 75 "is left unfinished" "stop file asked_in_evaluation/stop_now" "step_00000002"

# A sample of a million tokens is left between two of them, also where only rank 0 of two generates.
sampled=(train "$root/inputs/verify_gpt.json" data.format=text "data.train=[\"$work/text.txt\"]" data.tokenizer=byte model.vocab_size=256 train.global_batch_size=2
  train.max_steps=100000 eval.interval=0 eval.sample_tokens=1000000)
for ranks in 0 2; do
  start $ranks "${sampled[@]}" run.dir="samples$ranks"
  check "a long sample says how far it is ($ranks ranks)" wait_for out "sample: "
  touch "samples$ranks/stop_now"
  end 15
  expect "a request to stop in a sample ($ranks ranks)" 75 "the sample after step 0 is left unfinished" "stop file" \
    "checkpoint samples$ranks/checkpoints/step_00000001"
done

# Ctrl-C reaches a whole process group, and timeout signals a process and its group: jobs/launch passes on one request,
# which waits for the save although the step takes longer than Open MPI's mpiexec waits.
if [ "$(launchers_mpiexec)" = openmpi ]; then
  for signal in INT TERM; do
    # shellcheck disable=SC2016
    SITE=local setsid perl -e '$SIG{INT} = "DEFAULT"; exec @ARGV' "$root/jobs/launch" -n 2 "$choir" train "$debug" "${small[@]}" \
      run.dir="launch_$signal" "${long[@]}" fault.enable=true fault.slow_rank=0 fault.slow_step=41 fault.slow_ms=2500 >out 2>&1 </dev/null &
    pid=$! command="jobs/launch -n 2 choir train"
    wait_for out "step=40 "
    kill -"$signal" "$pid"
    kill -"$signal" -- -"$pid"
    check "SIG$signal twice to jobs/launch is answered at once" wait_for out "launch: asked to stop"
    check "... before the step ends" lacks out "stopping after step"
    end 15
    expect "... and the run is saved" 75 "checkpoint launch_$signal/checkpoints/step_" "run the same command again to continue"
  done
  # A batch system ends a job with SIGTERM to its script, or to all of its processes.
  SITE=local RANKS=2 CHOIR=$choir setsid "$root/jobs/local.sh" "$debug" "data.train=[\"$work/text.txt\"]" run.dir="$work/job_ended" "${long[@]}" \
    fault.enable=true fault.slow_rank=0 fault.slow_step=41 fault.slow_ms=2500 >out 2>&1 </dev/null &
  pid=$! command="jobs/local.sh"
  wait_for out "step=40 "
  kill -TERM -- -"$pid"
  end 15
  expect "SIGTERM to a job saves, however long the step takes" 75 "asked to stop" "checkpoint $work/job_ended/checkpoints/step_" \
    "job: exit code 75: saved"
fi

train 2 killed fault.enable=true fault.kill_rank=1 fault.kill_step=5
expect_killed "SIGKILL of one rank"
train 2 throws fault.enable=true fault.throw_rank=1 fault.throw_step=5
expect "a rank throws" 5 "[rank 1/" "rank 1 throws before step 5"
train 3 throws fault.enable=true fault.throw_rank=0 fault.throw_step=5
expect "rank 0 of 3 throws" 5 "[rank 0/" "rank 0 throws before step 5"
train 2 hangs fault.enable=true fault.hang_rank=1 fault.hang_step=5 parallel.timeout=3
expect "a rank hangs" 5 "watchdog: rank" "made no progress" "in phase" "exit code 5" "step 5" "rank 1 is behind"

train 2 nan fault.enable=true fault.nan_step=5 train.nan_policy=stop
expect "a loss that is not a number" 4 "step 5: the loss is" "tensors have gradients that are not finite" "blocks." \
  "lower optimizer.learning_rate or set train.nan_policy"
train 2 skips fault.enable=true fault.nan_step=5 train.nan_policy=skip
expect "... is skipped" 0 "step 5: loss" "step skipped (1 in a row)" "20 (20 now), 480 sequences used, 19 updates"
check "... and marked in the metrics" matches skips/metrics.jsonl '"step":5,"loss":null.*"skipped":true'

OMPI_COMM_WORLD_SIZE=4 run 0 train "$debug" "${small[@]}" run.dir=wrong
expect "the wrong launcher" 5 "4 independent 1-rank jobs: wrong launcher"
: >a_file
train 2 a_file/run
expect "a run directory that cannot be made" 6 "a_file/run"

# Batch systems and launchers repeat signals. Steps are slow, so that the run still exists when the
# last signal comes: an mpiexec whose ranks have ended would die of it.
start 2 train "$debug" "${small[@]}" run.dir=repeated "${long[@]}" fault.enable=true fault.slow_rank=0 fault.slow_step=21 fault.slow_ms=500
wait_for out "step=20 "
for _ in 1 2 3 4 5 6 7 8; do kill -USR1 "$pid" 2>/dev/null; sleep 0.02; done
end 15
remember 75
expect "SIGUSR1 eight times" 75 "checkpoint repeated/checkpoints/step_"

start 0 train "$debug" "${small[@]}" run.dir=shared "${long[@]}"
wait_for out "step=20 "
first=$pid
train 2 shared "${long[@]}"
expect "a run directory that is in use" 6 "another run (" ") is using the run directory 'shared'" "choose another run.dir"
check "... is said once" test "$(grep -c 'is using the run directory' out)" = 1
kill -USR1 "$first"
wait "$first"
check "... and the first run goes on" test $? = 75

# A reader that ends early: the run completes its work, and its log notes once that nobody read the
# rest of its output.
{ "$choir" train "$debug" "${small[@]}" run.dir=unread 2>stderr </dev/null; echo $? >code; } | head -n 1 >out
code=$(cat code) command="choir train ... | head -n 1"
cat stderr >>out
expect "train | head -n 1" 0 "choir"
check "... is noted once in its log" test "$(grep -c 'nobody reads the output of this command' unread/log.txt)" = 1
check "... which is whole" has unread/log.txt "summary:"
{ "$choir" train "$debug" "${small[@]}" run.dir=unread_both fault.enable=true fault.stop_step=3 2>&1 </dev/null; echo $? >code; } | head -n 1 >out
code=$(cat code) command="choir train ... 2>&1 | head -n 1"
expect "a run that is stopped while nobody reads either output" 75 "choir"
check "... is saved" test -e unread_both/checkpoints/step_00000003/manifest.json
{ sleep 0.3; "$choir" train --describe 2>stderr </dev/null; echo $? >code; } | true
code=$(cat code) command="choir train --describe | true"
cp stderr out
expect "a command that prints to nobody" 0
check "... ends quietly" test ! -s stderr

# A limit on addresses that is too low for the libraries or for the run ends it with a message, and
# at once.
for addresses in 250000 300000 350000 420000 500000; do
  (ulimit -v $addresses; exec timeout $((10 * patience)) "$choir" train "$debug" "${small[@]}" run.dir=narrow) >out 2>&1 </dev/null
  code=$? command="choir train under ulimit -v $addresses"
  check "ulimit -v $addresses ends with a message (exit code $code)" eval '[ $code != 0 ] && [ $code -lt 124 ] && [ -s out ]'
  [ $addresses != 300000 ] || expect "... which says what to do" 1 "out of memory" "ulimit -v"
done
