#!/usr/bin/env bash
# fault_drill.sh [--drills N] [--seed S] [--ranks R] [--jobs J] [--build DIR]: faults in random order, each at a random
# instant of a small run: a rank is killed, hung or stopped, an error thrown, a bit flipped, a disk filled, a file damaged.
# Each fault of the deck's `fault` section must be detected in time, by name and with the exit code
# of the README; then the same run continues without the fault, and must end with the bits of a run
# without faults, in a checkpoint that verifies. The same seed gives the same drills, except for the
# instants of "power". At last it prints a table, and "N passed, N failed".
#   steps lost   steps that were computed and had to be computed again
#   VALID        the last checkpoint verifies and equals that of the undisturbed run, tensor by tensor, bit by bit
set -u
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
drills=36 seed=1 ranks=3 jobs=2 build=$root/build
while [ $# -gt 1 ]; do
  case $1 in
    --drills) drills=$2 ;;
    --seed) seed=$2 ;;
    --ranks) ranks=$2 ;;
    --jobs) jobs=$2 ;;
    --build) build=$2 ;;
    *) break ;;
  esac
  shift 2
done
if [ $# -gt 0 ] || [ "$ranks" -lt 2 ]; then
  echo "usage: fault_drill.sh [--drills N] [--seed S] [--ranks R: 2, 3, 4, 6 or 12] [--jobs J] [--build DIR]" >&2
  exit 2
fi
choir=$(cd "$build" && pwd)/choir || exit 2
# shellcheck source=../jobs/launch.sh
. "$root/jobs/launch.sh"
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES="" OMPI_MCA_odls_base_sigkill_timeout=0

steps=24 interval=4 data=tokens
timeout=2                      # seconds, for drills that hang
short=("parallel.timeout=$timeout" watch.start=30 watch.first_step=30)  # of steps: a busy machine needs longer to start
dead_limit=5                   # seconds in which a dead rank is named
work=$(mktemp -d "${TMPDIR:-/tmp}/choir-drill.XXXXXX") || exit 1
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$work" || exit 1

# --- runs --------------------------------------------------------------------------------------------------
deck=("$root/inputs/debug.json" "train.max_steps=$steps" "optimizer.decay_steps=$steps"
  "checkpoint.interval=$interval" eval.interval=0
  eval.sample_tokens=0)
stamped() { while IFS= read -r line; do printf '%s %s\n' "$EPOCHREALTIME" "$line"; done; }
# train OUT RUN OVERRIDE...: every line of OUT begins with its time. The last line gives the exit
# code of the launcher.
train() {
  local out=$1 run=$2
  shift 2
  {
    LAUNCH_LIMIT=60 launch "$ranks" "$choir" train "${deck[@]}" "data.train=[\"$data\"]" run.dir="$run" "$@" 2>&1 </dev/null
    echo "exit code $?"
  } | stamped >"$out"
}
# when OUT PATTERN: prints the time of the first such line; fails if there is none.
when() { grep -aE -m 1 -- "^[0-9.]+ .*($2)" "$1" | cut -d' ' -f1 | grep .; }
newest() { find "$1/checkpoints" -maxdepth 1 -name 'step_????????' -printf '%f\n' 2>/dev/null | sort | tail -n 1; }
# Prints name and checksum of every tensor of the newest checkpoint.
tensors() {
  awk -F'"' '$2 == "crc32c" { crc = $4 } $2 == "name" && $4 ~ /\// { print $4, crc }' \
    "$1/checkpoints/$(newest "$1")/manifest.json" | sort
}
valid() {  # valid RUN
  [ "$(newest "$1")" = "$(printf 'step_%08d' $steps)" ] && cmp -s "$1.tensors" reference.tensors &&
    "$choir" inspect "$1/checkpoints/$(newest "$1")" --verify >"$1.inspect" 2>&1
}
code_of() { sed -n '$s/.*exit code //p' "$1"; }
# "resumed from .../step_00000008" or nothing: 8 or 0
resumed_at() { sed -nE 's/.*resumed from .*step_0*([0-9]+) .*/\1/p' "$1" | head -n 1 | grep . || echo 0; }
reached() { sed -nE 's/.*\[I\] step=([0-9]+) .*/\1/p' "$1" | sort -n | tail -n 1 | grep . || echo 0; }

# --- drills ------------------------------------------------------------------------------------------------
RANDOM=$seed
pick() { picked=${*:1 + RANDOM % $#:1}; }
# plan KIND: sets what (for the table), fault (overrides), code, words (a pattern of the required
# message), limit (seconds).
plan() {
  local kind=$1 rank=$((RANDOM % ranks)) step=$((2 + RANDOM % (steps - 2))) phase save
  pick start data forward backward comm optimizer
  phase=$picked
  save=$((interval * (2 + RANDOM % (steps / interval - 2))))  # neither the first nor the last
  what="" fault=(parallel.timeout=30) code=0 words="" limit=$dead_limit recovery="" where=run
  case $kind in
    kill)
      what="SIGKILL of rank $rank, step $step, $phase"
      fault+=(fault.kill_rank="$rank" fault.kill_step="$step" fault.phase="$phase") code=137
      words="rank $rank .*(exited on signal 9|has died)"
      # In half of the cases the launcher does not watch its ranks: the other ranks report the
      # fault, and the launcher's code means nothing.
      if [ $((RANDOM % 2)) = 0 ]; then
        what+=", launcher silent" recovery=1 code=any words="sees that rank $rank .*has died"
      fi ;;
    kill_in_save)
      pick layout write fsync written manifest rename latest prune
      what="SIGKILL at '$picked' of the save of step $save" code=137 words="exited on signal 9"
      fault+=(fault.kill_in_save="$picked" fault.kill_step="$save") ;;
    power)
      what="SIGKILL of all ranks" fault+=(fault.slow_rank=0 fault.slow_step=1 fault.slow_ms=20) code=137
      words="exit code 137" where=outside ;;
    hang)
      what="rank $rank hangs, step $step, $phase" limit=$((timeout + 5)) code=5
      fault=("${short[@]}" fault.hang_rank="$rank" fault.hang_step="$step" fault.phase="$phase")
      words="watchdog: rank $rank hangs in|rank $rank (is behind|\(process)" ;;
    pause)
      what="SIGSTOP of rank $rank, step $step, $phase" limit=$((timeout + 5)) code=5
      fault=("${short[@]}" fault.pause_rank="$rank" fault.pause_step="$step" fault.phase="$phase")
      words="watchdog: rank $rank hangs in|rank $rank .*stopped by a signal|rank $rank (is behind|\(process)" ;;
    throw)
      what="rank $rank throws, step $step, $phase" code=5
      fault+=(fault.throw_rank="$rank" fault.throw_step="$step" fault.phase="$phase") words="choir: .*rank $rank throws" ;;
    slow)
      step=$((2 + RANDOM % 8))
      what="rank $rank is slow from step $step on" words="slowest: rank $rank .*steadily slow"
      fault+=(fault.slow_rank="$rank" fault.slow_step="$step" fault.slow_ms=30 fault.phase=forward watch.ranks=3) ;;
    nan)
      pick "${parameters[@]}"
      what="NaN in the gradient of $picked, rank $rank, step $step" code=4
      fault+=(fault.nan_rank="$rank" fault.nan_step="$step" fault.nan_parameter="$picked" train.nan_policy=stop)
      words="step $step: .*gradient norm .*not finite: .*$picked" ;;
    flip)
      # The run ends at once, because a few updates may round the difference away.
      fault+=(watch.weights=1)
      pick "${parameters[@]}"
      what="a bit of $picked, rank $rank, after step $step" code=4
      fault+=(fault.flip_rank="$rank" fault.flip_step="$step" fault.flip_parameter="$picked")
      words="weights that should be the same bits differ: .*rank $rank on" ;;
    save_fails)
      pick write_fail write_short disk_full
      what="$picked, save of step $save" fault+=("fault.${picked}_step=$save")
      words="checkpoint of step $save FAILED, training goes on"
      if [ "$picked" = write_fail ]; then what+=", rank $rank" fault+=(fault.write_fail_rank="$rank"); fi ;;
    save_damaged)
      pick truncate corrupt
      # There must be an older checkpoint to fall back to.
      what="$picked, checkpoint of step $save" code=137 where=resume
      words="passed over a damaged checkpoint: .*step_0*$save.*(bytes|crc32c|damaged)"
      fault+=(checkpoint.async=false "fault.${picked}_save_step=$save" fault.kill_rank="$rank" fault.kill_step=$((save + 1 + RANDOM % interval))) ;;
    data)
      pick truncate corrupt
      what="$picked, a shard of the data" fault+=("fault.${picked}_data=DATA/$shard") code=3
      words="token file 'DATA/$shard'" ;;
  esac
}

# drill NUMBER: runs the planned drill. Writes NUMBER.line for the table, and NUMBER.bad with the
# errors.
drill() {
  local n=$1 run=$work/run$1 out=out$1 after=after$1 injected="" seen="" lost found seconds=- verdict=no again=""
  : >"$n.bad"
  bad() { echo "$*" >>"$n.bad"; }
  if [[ "${fault[*]}" = *DATA* ]]; then
    data=data$n words=${words//DATA/data$n}
    cp -r tokens "$data"
  fi
  [ -z "$recovery" ] || export OMPI_MCA_orte_enable_recovery=1
  if [ "$where" = outside ]; then
    train "$out" "$run" fault.enable=true "${fault[@]}" &
    until grep -qsF '[I] step=1 ' "$out"; do sleep 0.02; done
    sleep "0.$delay"
    injected=$EPOCHREALTIME
    # shellcheck disable=SC2046
    kill -9 $(pgrep -f -- "^$choir train .* run.dir=$run( |$)") 2>/dev/null
    wait $!
  else
    train "$out" "$run" fault.enable=true "${fault[@]//DATA/$data}"
    injected=$(when "$out" "choir: fault: rank") || bad "the fault was not made"
  fi
  unset OMPI_MCA_orte_enable_recovery
  data=tokens  # intact again
  found=$(code_of "$out")
  [ "$code" = any ] || [ "$found" = "$code" ] || bad "exit code $found, expected $code"
  if [ "$found" = 0 ] && [ "$code" = 0 ]; then cp "$out" "$after"; else train "$after" "$run" parallel.timeout=30; again=1; fi
  [ "$(code_of "$after")" = 0 ] || bad "does not go on: exit code $(code_of "$after")"
  if [ "$where" = resume ]; then
    injected=$(head -n 1 "$after" | cut -d' ' -f1)
    seen=$(when "$after" "$words")
  else
    seen=$(when "$out" "$words")
  fi
  if [ -z "$seen" ]; then bad "nobody says: $words"
  elif [ -n "$injected" ]; then
    seconds=$(awk -v a="$injected" -v b="$seen" 'BEGIN { printf "%.1f", b - a }')
    awk -v s="$seconds" -v most="$limit" 'BEGIN { exit !(s < most) }' || bad "detected after $seconds s, allowed: $limit"
  fi
  lost=$((again ? $(reached "$out") - $(resumed_at "$after") : 0))
  # A save may be in flight when a run ends, and a checkpoint may be damaged.
  if [ "$lost" -lt 0 ] || [ "$lost" -gt $((3 * interval)) ]; then bad "$lost steps lost"; fi
  tensors "$run" >"$run.tensors" 2>/dev/null
  if valid "$run"; then verdict=yes; else bad "the last checkpoint ($(newest "$run")) is not that of the undisturbed run"; fi
  if [ "$code" = any ]; then found=-; fi
  printf '%4d  %-72s %8s  %4s  %10s  %5s  %s\n' "$n" "$what" "$seconds" "$found" "$lost" "$verdict" \
    "$(if [ -s "$n.bad" ]; then echo FAILED; fi)" >"$n.line"
  [ -s "$n.bad" ] || rm -rf "$run" "data$n"
}

# --- the undisturbed run, then the drills -----------------------------------------------------------------
began=$SECONDS
awk 'BEGIN {
  for (s = 4711; i < 9000; i++) {
    s = s * 16807 % 2147483647
    printf "%s", substr("etaoin shrdlu,.\n", 1 + s % 16, 1 + s % 5)
  }
}' >text.txt
"$choir" prepare text text.txt --out tokens --tokenizer char >prepare.out 2>&1 || { cat prepare.out; exit 1; }
shard=$(find tokens -name '*.tok' -printf '%f\n' | sort | head -n 1)
train reference.out reference
[ "$(code_of reference.out)" = 0 ] || { cat reference.out; exit 1; }
tensors reference >reference.tensors
mapfile -t parameters < <(sed -nE 's,^[^ ]*parameters/([^ ]+) .*,\1,p' reference.tensors)
[ "${#parameters[@]}" -gt 4 ] || { echo "no parameters in reference.tensors"; cat reference.tensors; exit 1; }

echo "$drills drills, seed $seed, $ranks ranks, $steps steps, a checkpoint every $interval, time-out $timeout s"
kinds=()
for ((n = 1; n <= drills; n++)); do
  [ ${#kinds[@]} -gt 0 ] || kinds=(kill kill_in_save power hang pause throw slow nan flip save_fails save_damaged data)
  at=$((RANDOM % ${#kinds[@]}))
  plan "${kinds[at]}"
  kinds=("${kinds[@]:0:at}" "${kinds[@]:at + 1}")
  delay=$((RANDOM % 400 + 100))
  while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do wait -n; done
  drill "$n" &
done
wait
echo
printf '%4s  %-72s %8s  %4s  %10s  %5s\n' "" injected "found, s" code "steps lost" VALID
passed=0 failed=0
for ((n = 1; n <= drills; n++)); do
  cat "$n.line"
  if [ -s "$n.line" ] && [ ! -s "$n.bad" ]; then passed=$((passed + 1)); continue; fi
  failed=$((failed + 1))
  echo "not ok drill $n"
  sed 's/^/    /' "$n.bad"
  for file in "out$n" "after$n"; do echo "    $file:"; grep -avE 'step=' "$file" | tail -n 25 | sed 's/^/    | /'; done
done
echo "in $((SECONDS - began)) s"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
