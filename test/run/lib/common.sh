# shellcheck shell=bash
# Sourced by every test/run/*.sh, which is called as NAME.sh BUILD. Each has a temporary directory
# of its own as working directory, runs the program there, and checks the exit code and the output:
#
#   run 2 train deck.json run.dir=x      on 2 ranks; 0 or 1: without a launcher. Sets $code; out, stdout, stderr
#   expect "name" 2 "words" "words"      one check: that exit code, and each of these words in the output
#   expect_killed "name" "words"         the same if a rank was killed: 137 (9 with MPICH's mpiexec), or 5 of the rank that saw it
#   check "name" COMMAND ...             one check: the command succeeds
#   in_time "name" TOOK BOUND            one check: TOOK milliseconds are at most BOUND (times the patience); now_ms: the clock
#   skip "name" "reason"                 a check that cannot be made here; `make test` counts and lists it
#   exhaustive && ...                    only in make test-long: behavior that tests of one process cover, seen by the user
#
# Every check prints a line, "ok NAME", "not ok NAME" or "skipped NAME: REASON"; the last line of a script is "N passed, N
# failed, N skipped".
# shellcheck disable=SC2034  # many of these variables are for the scripts
set -u
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
build=$(cd "${1:?usage: $0 BUILD}" && pwd) || exit 1
choir=$build/choir
debug=$root/inputs/debug.json
[ -x "$choir" ] || { echo "not ok $choir is missing"; echo "0 passed, 1 failed, 0 skipped"; exit 1; }
# shellcheck source=../../../jobs/launch.sh
. "$root/jobs/launch.sh"
export OMP_NUM_THREADS=1  # sums of products depend on the number of threads; the tests compare bits
export CUDA_VISIBLE_DEVICES=  # the tests are about the CPU, even if there are GPUs (test/cuda and test/mpi_cuda are not)
limit=60                  # seconds that a run may take
patience=${TEST_PATIENCE:-1}  # ... times this: beside another script, or under a sanitizer
passed=0 failed=0 skipped=0
work=$(mktemp -d "${TMPDIR:-/tmp}/choir-test.XXXXXX") || exit 1
mounted=""

finish() {
  local running
  for running in $(jobs -p); do stop_hard "$running"; done
  [ -z "$mounted" ] || umount -l "$mounted"
  cd / && rm -rf "$work"
  echo "$passed passed, $failed failed, $skipped skipped"
  if [ "$failed" -ne 0 ] || [ $((passed + skipped)) -eq 0 ]; then exit 1; fi
  exit  # as it would have ended; an exit code of a test here would not count
}
trap finish EXIT
trap 'exit 130' INT TERM
cd "$work" || exit 1

pass() { echo "ok $1"; passed=$((passed + 1)); }
fail() {  # fail NAME REASON
  echo "not ok $1: $2"
  failed=$((failed + 1))
}
skip() {  # skip NAME REASON; the first colon separates the two
  echo "skipped ${1//: /, }: $2"
  skipped=$((skipped + 1))
}
show_output() { echo "    \$ $command   (exit code $code)"; tail -n 25 out | sed 's/^/    | /'; }

exhaustive() { [ -n "${TEST_EXHAUSTIVE:-}" ]; }

run() {  # run RANKS ARGUMENT...
  local ranks=$1
  shift
  command="choir $* on $ranks ranks"
  if [ "$ranks" -le 1 ]; then timeout --kill-after=5 $((limit * patience)) "$choir" "$@" >stdout 2>stderr </dev/null
  else  # without the second that Open MPI gives the other ranks of a job that failed
    OMPI_MCA_odls_base_sigkill_timeout=0 LAUNCH_LIMIT=$((limit * patience)) \
      launch "$ranks" "$choir" "$@" >stdout 2>stderr </dev/null
  fi
  code=$?
  cat stdout stderr >out
  code_of_launcher
}

# The mpiexec of Open MPI 4 sometimes deadlocks after a job that failed: it has reported the exit
# code, its ranks are dead, and it waits in PMIx_server_finalize until it is killed, or crashes
# there. The reported code is the exit code of the job.
code_of_launcher() {
  local told
  case $code in 124 | 137 | 139) ;; *) return ;; esac
  told=$(sed -n 's/^ *Exit code: *\([0-9][0-9]*\)$/\1/p' out | head -n 1)
  [ -z "$told" ] || { echo "# mpiexec locked up after: $command"; code=$told; }
}

# run_broken RULE RANKS ARGUMENT...: the same with a program that breaks this rule of
# test/mutants/rules.txt; empty: none.
run_broken() {
  local rule=$1
  shift
  [ -z "$rule" ] || grep -q "^rule $rule:" "$root/test/mutants/rules.txt" || fail "rule $rule" "test/mutants/rules.txt has no such rule"
  CHOIR_MUTANT=$rule choir=$build/choir${rule:+_mutants} run "$@"
}

# start RANKS ARGUMENT...: the same in the background; $pid is the launcher. end: waits, sets $code.
start() {
  local ranks=$1
  shift
  command="choir $* on $ranks ranks"
  : >out  # now, not in the child: a wait for words must not see those of the run before
  if [ "$ranks" = 0 ]; then "$choir" "$@" >out 2>&1 </dev/null &
  else launch_exec "$ranks" "$choir" "$@" >out 2>&1 </dev/null &
  fi
  pid=$!
}
end() {  # end [SECONDS]: a run that does not end in time is killed and counts as 124
  local until=$((SECONDS + ${1:-$limit} * patience))
  while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$until" ]; do sleep 0.05; done
  if kill -0 "$pid" 2>/dev/null; then stop_hard "$pid"; code=124
  else
    wait "$pid" 2>/dev/null
    code=$?
  fi
  code_of_launcher
}
stop_hard() {  # stop_hard PID: kills it and its children; a launcher that dies first leaves its ranks behind
  local children
  children=$(pgrep -P "$1")
  # shellcheck disable=SC2086
  kill -9 $children "$1" 2>/dev/null
  wait "$1" 2>/dev/null
}
# wait_for FILE WORDS: waits until the file has the words, at most 20 seconds, times the patience.
wait_for() {
  local until=$((SECONDS + 20 * patience))
  until grep -qsF -- "$2" "$1"; do
    [ "$SECONDS" -lt "$until" ] || return 1
    sleep 0.02
  done
}

expect() {  # expect NAME CODE [WORDS...]
  local name=$1 wanted=$2 words
  shift 2
  if [ "$code" != "$wanted" ]; then
    fail "$name" "exit code $code, expected $wanted"
    show_output
    return 1
  fi
  for words in "$@"; do
    if ! grep -qF -- "$words" out; then
      fail "$name" "the output lacks: $words"
      show_output
      return 1
    fi
  done
  pass "$name"
}

# One check: start.txt of a run, which has the part of the output that does not fit on the screen,
# has each of these words.
started() {  # started NAME RUN WORDS...
  local name=$1 file=$2/start.txt words
  shift 2
  for words in "$@"; do
    grep -qF -- "$words" "$file" || { fail "$name" "$file lacks: $words"; return 1; }
  done
  pass "$name"
}

# A rank was killed: mpiexec notices it and ends the others, or, if that is slow, a rank noticed it
# first.
expect_killed() {  # expect_killed NAME [WORDS...]
  local name=$1 killed=137
  shift
  case "${MPIEXEC:-}" in *mpich) killed=9 ;; esac
  if [ "$code" = 5 ] && has out "has died"; then killed=5; fi
  expect "$name" "$killed" "$@"
}

check() {  # check NAME COMMAND...
  local name=$1
  shift
  if "$@" >check.log 2>&1; then pass "$name"; return 0; fi
  fail "$name" "$*"
  head -n 12 check.log | sed 's/^/    | /'
  return 1
}
now_ms() { date +%s%3N; }
# run_all.sh shows the lines "measured: ..." of all scripts.
in_time() {  # in_time NAME MILLISECONDS BOUND
  echo "measured: $1: $2 ms, bound $(($3 * patience)) ms"
  if [ "$2" -le $(($3 * patience)) ]; then pass "$1"; else fail "$1" "it took $2 ms, and the bound is $(($3 * patience)) ms"; fi
}
has() { grep -qF -- "$2" "$1"; }          # has FILE WORDS
matches() { grep -qE -- "$2" "$1"; }      # matches FILE PATTERN
lacks() { ! grep -qF -- "$2" "$1"; }
absent() { [ ! -e "$1" ]; }
number_is() {  # number_is NUMBER above|below BOUND, including the bound; text that is no number is neither
  awk -v v="${1:-none}" -v bound="$3" -v above="$2" \
    'BEGIN { print v; exit !(v ~ /^[0-9.]+$/ && (above == "above" ? v + 0 >= bound : v + 0 <= bound)) }'
}
same() { diff <("${1%% *}" "${1#* }") <("${2%% *}" "${2#* }") && [ -n "$("${1%% *}" "${1#* }")" ]; }

# A text of LINES lines, the same on every machine: Park and Miller's generator selects the words.
make_text() {  # make_text FILE LINES
  awk -v lines="$2" 'BEGIN {
    n = split("the king and his horse ride over a hill; who goes there? no one but me, my Lord! " \
              "we shall meet again when wind and rain have blown away: quick, jump by the fox.", word, " ")
    seed = 4711
    for (i = 0; i < lines; i++) {
      line = ""
      for (j = 0; j < 8; j++) { seed = seed * 16807 % 2147483647; line = line word[1 + seed % n] " " }
      print line
    }
  }' >"$1"
}

# The deck of the tests: inputs/debug.json on a text of 60 kB in the working directory.
make_text text.txt 1400
small=("data.train=[\"text.txt\"]")
train() {  # train RANKS RUN_DIRECTORY OVERRIDE...
  local ranks=$1 directory=$2
  shift 2
  run "$ranks" train "$debug" "${small[@]}" run.dir="$directory" "$@"
}

# Prints the results of a run: "step loss" of every line of its metrics.jsonl.
losses() { sed -nE 's/^\{"step":([0-9]+),"loss":([^,]*),.*/\1 \2/p' "$1/metrics.jsonl"; }
# Prints name and checksum of every tensor of a checkpoint (of a run's newest), sorted.
tensors() {
  local at=$1
  [ -e "$at/manifest.json" ] || at=$at/checkpoints/$(newest "$1")
  awk -F'"' '$2 == "crc32c" { crc = $4 } $2 == "name" && $4 ~ /\// { print $4, crc }' "$at/manifest.json" | sort
}
# ... without the state beside parameters and moments (its counters count per layout).
weights() { tensors "$1" | grep -v '^state/'; }
newest() { ls "$1/checkpoints" | grep '^step_[0-9]*$' | sort | tail -n 1; }
same_losses() { same "losses $1" "losses $2"; }
same_tensors() { same "tensors $1" "tensors $2"; }
same_weights() { same "weights $1" "weights $2"; }
close_losses() {  # close_losses A B RELATIVE
  paste -d' ' <(losses "$1") <(losses "$2") | awk -v most="$3" '
    { d = $2 - $4; if (d < 0) d = -d; s = $2 < 0 ? -$2 : $2; if (s < 1) s = 1
      if ($1 != $3 || NF != 4 || d > most * s) { print "step", $1, $3, "losses", $2, $4; bad = 1 } }
    END { if (NR == 0) print "no losses"; exit bad || NR == 0 }'
}

flip_byte() {  # flip_byte FILE OFFSET: inverts one byte
  local old
  old=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
  # shellcheck disable=SC2059
  printf "\\x$(printf %x $((old ^ 255)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
file_bytes() { wc -c <"$1" | tr -d ' '; }
