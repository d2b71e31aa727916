#!/usr/bin/env bash
# Sends SIGKILL 50 times at a random instant of a run that saves all the time; the run directory
# stays loadable, never loses a complete checkpoint, and the end is that of an uninterrupted run,
# bit by bit.
. "$(dirname "$0")/../lib/common.sh"
often=(train.max_steps="${KILL_STEPS:-4000}" checkpoint.interval=5 eval.interval=0 log.interval=100 checkpoint.keep=3)
limit=900  # for a busy machine
train 2 straight "${often[@]}"
expect "straight through" 0 "summary:"

complete() { ls killed/checkpoints 2>/dev/null | sed -nE 's/^step_0*([0-9]+)$/\1/p' | sort -n | tail -n 1; }
RANDOM=${KILL_SEED:-4711}
kills=0 rounds=0
while [ "$kills" -lt "${KILLS:-50}" ] && [ "$rounds" -lt 200 ]; do
  rounds=$((rounds + 1))
  before=$(complete)
  start 2 train "$debug" "${small[@]}" run.dir=killed "${often[@]}"
  # Mostly while it steps and saves, sometimes while it starts.
  [ $((RANDOM % 5)) = 0 ] || wait_for out "ready after"
  sleep "0.$((RANDOM % 700 + 100))"
  victims=$(pgrep -P "$pid" -x choir)
  # shellcheck disable=SC2086
  if [ -n "$victims" ] && kill -9 $victims 2>/dev/null; then kills=$((kills + 1)); fi
  end 30
  # Only the next start can fail to resume from the step that this run reached; this is tested here.
  [ "$code" != 0 ] || rm -r killed/checkpoints
  if [ -n "$before" ] && [ "$code" != 0 ] && ! grep -qF "resumed from" out && grep -qF '[I] step=' out; then
    fail "round $rounds" "did not resume, though step $before is complete"
    show_output
  fi
  after=$(complete)
  if [ -n "$before" ] && [ "$code" != 0 ] && [ "${after:-0}" -lt "$before" ]; then
    fail "round $rounds" "step $before was complete, now ${after:-none} is"
  fi
done
check "killed $kills times" test "$kills" -ge "${KILLS:-50}"
train 2 killed "${often[@]}"
expect "and once to the end" 0 "summary:"
# Every start logs its first step too, so the killed run has more lines.
losses_within() { [ -z "$(comm -23 <(losses "$1" | sort) <(losses "$2" | sort))" ] && [ -n "$(losses "$1")" ]; }
check "the losses of straight through, bit by bit" losses_within straight killed
check "every tensor of straight through, bit by bit" same_tensors straight killed
