#!/usr/bin/env bash
# test/run/signals.sh at length, on one rank and on four: 10,000 signals of each kind that must change nothing, STORMS
# (200) runs under a storm of SIGUSR1, SINGLES (200) with one SIGUSR1 at a random instant, TERMS (100) with one SIGTERM.
# Each ends as promised and continues bitwise. RANKS (1 4): numbers of ranks.
. "$(dirname "$0")/../lib/common.sh"
. "$root/test/run/lib/signals.sh"
limit=120
far=(train.max_steps=100000)
RANDOM=${SIGNAL_SEED:-4711}
"${CC:-cc}" -O1 -shared -fPIC -o handlers.so "$root/test/run/lib/foreign_handlers.c" -lrt

# expect_straight RUN: RUN was stopped after some step. RUN and the uninterrupted run are continued
# to the same step, and have the same losses and tensors.
expect_straight() {
  local at
  at=$(losses "$1" | wc -l)
  [ $((at + 2)) -le "$steps" ] || {
    steps=$((at + 12))
    train "$ranks" "straight$ranks" "${wide[@]}" train.max_steps=$steps
    expect "straight through to step $steps" 0 "summary:" || return
  }
  # Both end at the same step.
  train "$ranks" "$1" "${wide[@]}" train.max_steps=$steps
  [ "$code" = 0 ] && same_losses "straight$ranks" "$1" && same_tensors "straight$ranks" "$1"
}

# round NAME CODES SENDER...: starts a run, calls the sender at a random instant after the first line of the log, and
# fails if the run did not end with one of the codes (a pattern), or is not continued bitwise.
round() {
  local name=$1 codes=$2
  shift 2
  rm -rf stopped
  start $((ranks == 1 ? 0 : ranks)) train "$debug" "${small[@]}" run.dir=stopped "${wide[@]}" "${far[@]}"
  wait_for out "[I]"
  sleep "0.$(printf %03d $((RANDOM % 1000)))"
  "$@"
  end 30
  ended=$((ended + 1))
  if [[ ! $code =~ ^($codes)$ ]] || grep -qE 'corrupted|Segmentation fault|Aborted|munmap_chunk|invalid pointer' out; then
    fail "$name, round $ended" "exit code $code"
    show_output
    return
  fi
  # SIGTERM saves if there is time: steps that were not saved are run again.
  [ "$code" = 75 ] || [ -e stopped/checkpoints ] || return
  expect_straight stopped >check.log 2>&1 || { fail "$name, round $ended" "is not continued bitwise"; head -n 12 check.log; }
}
storm() {
  # shellcheck disable=SC2046
  send 200 $forever USR1 $(ranks_of "$pid")
}
single() { kill -"$1" "$pid" 2>/dev/null; }

for ranks in ${RANKS:-1 4}; do
  steps=40
  train "$ranks" "straight$ranks" "${wide[@]}" train.max_steps=$steps
  expect "straight through on $ranks ranks" 0 "summary:"
  # After SIGTERM, mpiexec has its own exit code.
  term="1|143"
  [ "$ranks" = 1 ] || term="1|15|143"
  for kind in "storm:75:${STORMS:-200}" "USR1:75:${SINGLES:-200}" "TERM:$term:${TERMS:-100}"; do
    IFS=: read -r signal codes rounds <<<"$kind"
    ended=0 before=$failed
    while [ "$ended" -lt "$rounds" ]; do
      if [ "$signal" = storm ]; then round "a storm of SIGUSR1" "$codes" storm
      else round "one SIG$signal" "$codes" single "$signal"; fi
    done
    check "$signal on $ranks ranks: $ended runs end as promised" test "$failed" = "$before"
  done

  # 10,000 of each: a signal that is already pending is not sent twice, so one is sent each 0.2 ms,
  # and more if some merge.
  rm -rf handlers counts
  export FOREIGN_COUNTS=$PWD/counts
  LD_PRELOAD=$PWD/handlers.so start $((ranks == 1 ? 0 : ranks)) train "$debug" "${small[@]}" run.dir=handlers "${wide[@]}" \
    train.max_steps="${STEPS:-400}"
  wait_for out "[I]"
  # shellcheck disable=SC2046
  send 200 $forever CHLD,WINCH,CONT $(ranks_of "$pid") &
  end 300
  wait
  unset FOREIGN_COUNTS
  expect "handlers of others on $ranks ranks" 0 "summary:"
  check "... were called 10,000 times each: $(tr '\n' ';' <counts)" \
    awk 'NF != 4 || $1 < 10000 || $2 < 10000 || $3 < 10000 || $4 < 10000 { bad = 1 } END { exit bad || NR == 0 }' counts
  rm -rf straight
  train "$ranks" straight "${wide[@]}" train.max_steps="${STEPS:-400}"
  check "... changed no loss" same_losses straight handlers
  check "... and no bit of the checkpoint" same_tensors straight handlers
done
