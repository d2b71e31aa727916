#!/usr/bin/env bash
# Defects that were found by attacking the program: lost output, limits, unusual things under the
# names of files, wrong names, and the checks before a job. Nothing may hang, and every refusal
# names the place and a cure.
. "$(dirname "$0")/lib/common.sh"

train 2 base
expect "a run to attack" 0 "summary:"

# Output to a full disk: /dev/full accepts nothing.
lost() {  # lost NAME ARGUMENT...
  local name=$1
  shift
  command="choir $* >/dev/full"
  timeout --kill-after=5 $((limit * patience)) "$choir" "$@" >/dev/full 2>out </dev/null
  code=$?
  expect "$name to a full disk" 6 "standard output could not be written" "send it elsewhere"
}
lost "help" --help
lost "train --schema" train --schema
lost "train --describe" train --describe
lost "inspect --json" inspect base --json
lost "generate" generate base --tokens 8
lost "eval" eval base

# mpiexec would drop the output and end with 0; the log of a training is not its result.
if [ "$(launchers_mpiexec)" = openmpi ]; then
  launched() {  # launched ARGUMENT...: on two ranks, to a full disk
    command="jobs/launch -n 2 choir $* >/dev/full"
    SITE=local timeout --kill-after=5 $((limit * patience)) "$root/jobs/launch" -n 2 "$choir" "$@" >/dev/full 2>out </dev/null
    code=$?
  }
  launched eval base
  expect "jobs/launch to a full disk" 6 "launch: standard output could not be written" "send it elsewhere"
  launched train "$debug" "${small[@]}" run.dir=logged
  expect "... does not end a training" 0
  check "... whose log is in its file" has logged/log.txt "summary:"
fi

command="choir train nowhere.json 2>/dev/full"
timeout --kill-after=5 $((limit * patience)) "$choir" train nowhere.json >out 2>/dev/full </dev/null
code=$?
expect "an error whose message goes to a full disk" 2

# A limit on the size of files makes a save fail, but does not end the ranks. Open MPI itself needs
# files of 4 MiB.
large=(parallel.transport=mpi model.n_embd=256 train.micro_batch_size=1 train.max_steps=4 optimizer.warmup_steps=1 eval.interval=0 checkpoint.interval=2)
(
  ulimit -f 8192
  train 2 limited "${large[@]}"
  exit "$code"
)
code=$?
cat stdout stderr >out
expect "a limit on the size of files" 6 "checkpoint of step 2 FAILED, training goes on" "File too large" "ulimit -f" \
  "the state after step 4 was not saved"

# Folders that killed runs of prepare left; prepare removes those whose process is dead and ran on
# this host.
dead=$(sh -c 'echo $$')
mkdir "tokens.partial-$(hostname)-$dead" "tokens.partial-$(hostname)-$$" tokens.partial-elsewhere-1 "tokens.old-$(hostname)-$dead"
run 0 prepare text text.txt --out tokens
expect "prepare beside what killed runs left" 0 "written to  tokens"
check "... removes it" absent "tokens.partial-$(hostname)-$dead"
check "... and what commit had set aside" absent "tokens.old-$(hostname)-$dead"
check "... but not that of a live process" test -d "tokens.partial-$(hostname)-$$"
check "... nor that of another host" test -d tokens.partial-elsewhere-1
mv tokens "tokens.old-$(hostname)-$dead"
run 0 prepare text text.txt --out tokens
expect "prepare where a run was killed between two renames" 0 "written to  tokens"
check "... leaves nothing else" absent "tokens.old-$(hostname)-$dead"
make_text large.txt 150000
start 0 prepare text large.txt --out killed
until [ -n "$(ls -d killed* 2>/dev/null)" ] || ! kill -0 "$pid" 2>/dev/null; do sleep 0.005; done
kill -9 "$pid" 2>/dev/null
wait "$pid" 2>/dev/null
run 0 prepare text text.txt --out killed
expect "prepare after a kill" 0 "written to  killed"
check "... leaves no part" test -z "$(ls -d killed.partial-* 2>/dev/null)"

# The name of a checkpoint differs from its step.
cp -r base liar
cp -r liar/checkpoints/step_00000010 liar/checkpoints/step_99999999
train 2 liar train.max_steps=40 optimizer.decay_steps=20
expect "a copy under the name of a later step" 0 "passed over" "step_99999999: its manifest is of step 10" "move it away" \
  "resumed from liar/checkpoints/step_00000020" "40 (20 now)"
check "... has no other go before it" test -d liar/checkpoints/step_00000040 -a -d liar/checkpoints/step_00000030
check "... and is left for a person" test -d liar/checkpoints/step_99999999

# checkpoints/latest in a copy that followed links.
cp -rL base copied
train 2 copied train.max_steps=30 optimizer.decay_steps=20
expect "latest is a folder" 0 "copied/checkpoints/latest was not a link to a checkpoint: moved to copied/checkpoints/latest.moved-1"
check "... and is a link again" test "$(readlink copied/checkpoints/latest)" = step_00000030

# Storage errors have their own exit code, the path and a cure.
strange() { rm -rf strange && mkdir strange; }
strange; mkdir strange/metrics.jsonl
for ranks in 1 2; do
  train $ranks strange
  expect "metrics.jsonl is a folder, $ranks rank(s)" 6 "'strange/metrics.jsonl' is a folder, not a file" "move it away"
done
long_name=$(printf 'x%.0s' {1..256})
for word in "run.dir=$long_name" "run.dir=a/$long_name/b" "run.name=$long_name"; do
  run 2 train "$debug" "${small[@]}" "$word"
  expect "a name of 256 characters (${word:0:10})" 6 "$long_name" "File name too long" "255 bytes"
done
run 2 train "$debug" "${small[@]}" "run.dir=$(printf 'caf\xe9')"
expect "run.dir is not UTF-8" 2 "run.dir" "is not UTF-8"
cp "$debug" "$(printf 'caf\xe9.json')"
run 2 train "$(printf 'caf\xe9.json')" "${small[@]}"
expect "the deck's name is not UTF-8" 2 "is not UTF-8" "set run.dir"
strange; : >strange/metrics.jsonl
if chattr +i strange/metrics.jsonl 2>/dev/null; then
  for ranks in 1 2; do
    train $ranks strange
    expect "metrics.jsonl is immutable, $ranks rank(s)" 6 "strange/metrics.jsonl" "Operation not permitted" "lsattr"
  done
  chattr -i strange/metrics.jsonl
else skip "metrics.jsonl is immutable" "chattr +i is refused here"; fi

# Pipes and devices under the names of a run.
for name in metrics.jsonl log.txt deck.json; do
  strange; mkfifo "strange/$name"
  train 2 strange
  expect "$name is a pipe: train" 6 "'strange/$name' is a pipe, not a file" "move it away"
  rm -rf piped; cp -r base piped; rm "piped/$name"; mkfifo "piped/$name"
  run 0 report piped
  expect "$name is a pipe: report" 6 "'piped/$name' is a pipe, not a file"
done
for name in manifest.json state.h5; do
  rm -rf piped; cp -r base piped
  rm "piped/checkpoints/step_00000020/$name"; mkfifo "piped/checkpoints/step_00000020/$name"
  train 2 piped
  expect "$name is a pipe: resume" 0 "$name is a pipe, not a file" "resumed from piped/checkpoints/step_00000010"
done
strange; ln -s /dev/zero strange/metrics.jsonl
train 2 strange
expect "metrics.jsonl is a device" 6 "is a device, not a file"
mkfifo pipe.txt
run 0 prepare text pipe.txt --out from_pipe
expect "a text that is a pipe" 3 "pipe.txt"

# Messages that name the error.
OMP_NUM_THREADS=99999999999 run 2 train "$debug" "${small[@]}" run.dir=threads
expect "OMP_NUM_THREADS=99999999999" 2 'OMP_NUM_THREADS="99999999999"' "legal: 1 to 4096"
OMP_NUM_THREADS=2,1 run 0 --version
expect "... a list is legal" 0
run 0 train --check "$debug" "${small[@]}" train.max_steps=9223372036854775807 train.micro_batch_size=9223372036854775807
expect "2^63 - 1" 2 "train.micro_batch_size = 9223372036854775807 is out of range" "value <= 2147483647"
run 0 train --check "$debug" "${small[@]}" run.seed=9223372036854775808
expect "2^63" 2 "run.seed = 9223372036854775808 is too large for an integer" "value <= 9223372036854775807"
train 2 nothing_left data.val_fraction=0.9999999999
expect "val_fraction leaves nothing" 2 "is left for training" "data.val_fraction of at most"
train 2 preload data.preload=disk
expect "data.preload=disk" 2 "is not one of: none, host, device"

# A check opens the files that a start would open.
run 0 train --check "$debug" "${small[@]}" run.dir=checked
expect "a check" 0 "run.dir=checked" "run.walltime=" "deck OK"
check "... says what a save needs of the disk" matches stdout "^disk: a checkpoint has [0-9.]+ KiB of tensors, and a save reserves [0-9.]+ [KM]iB; .* are free$"
check "... gives its verdict once, at the end" test "$(grep -nw OK stdout)" = "$(wc -l <stdout):deck OK"
check "... and makes no run" absent checked
run 0 train --check "$debug" "${small[@]}" run.dir=base
expect "a check of a complete run" 0 "the run is complete, with 20 steps for train.max_steps = 20; a larger number continues it" "deck OK"
run 0 train --check "$debug" "${small[@]}" run.dir=base train.max_steps=30
expect "a check of a run to continue" 0 "continues from base/checkpoints/step_00000020" "deck OK"
run 2 train --check "$debug" "${small[@]}" run.dir=checked train.grad_accum=6
expect "a check of a batch for 2 ranks, on 2 ranks" 0 "deck OK"
run 2 train --check "$debug" "${small[@]}" run.dir=checked a.b=1 c.d=2
expect "two wrong keys of such a check" 2 "unknown key 'a.b'" "unknown key 'c.d'"
check "... are not the fault of one rank" lacks out "[rank 0/"
run 0 train --check "$debug" 'data.train=["not_there.txt"]' run.dir=checked
expect "a check without data" 3 "not_there.txt"
run 0 train --check "$debug" "${small[@]}" run.dir=checked checkpoint.init_from=not_there
expect "a check without the weights to begin with" 6 "not_there"
run 0 train --check "$debug" "${small[@]}" run.dir=text.txt/run
expect "a check of a run.dir that cannot be" 6 "text.txt"
run 2 train --check "$debug" "${small[@]}" run.dir="$long_name"
expect "... nor can this" 6 "File name too long"
strange; mkfifo strange/log.txt
run 0 train --check "$debug" "${small[@]}" run.dir=strange
expect "a check of a run with a pipe" 6 "'strange/log.txt' is a pipe"

# A checkpoint has right checksums and contents that make no sense to HDF5: nothing is read through
# HDF5, so all of it is found.
at=checkpoints/step_00000020
forge() { perl "$root/test/run/lib/forge_checkpoint.pl" "forged/$at" "$@"; }
run 1 generate base --tokens 8 --temperature 0
cp stdout said
for how in scramble old; do
  rm -rf forged && cp -r base forged
  check "a forged checkpoint: $how" forge $how
  run 1 generate forged/$at --tokens 8 --temperature 0
  expect "... generates" 0
  check "... as the one that it is of" diff stdout said
done
check "scrambled, and of an older program" forge scramble
run 0 generate forged/$at --tokens 1
expect "... is refused: it has no header of the text" 6 "the attribute meta of" "is not where choir writes it"
rm -rf forged && cp -r base forged && forge scramble
run 0 inspect forged/$at --verify
expect "inspecting it" 0 "parameters/embedding.tokens.weight"
run 0 export forged/$at --format hf --out forged.hf
expect "exporting it" 0 "format=hf"
run 1 eval forged/$at
expect "evaluating it" 0 "checkpoint=forged"
run 1 train "$debug" "${small[@]}" run.dir=from_forged checkpoint.init_from=forged/$at train.max_steps=1 optimizer.decay_steps=20
expect "beginning with it" 0 "warm start from forged"
train 2 forged train.max_steps=21
expect "continuing it" 0 "resumed from forged/$at" "21 (1 now)"
opens() { nm -u "$choir" | grep -E 'H5([ADFGO]open|[AD]read)'; }
check "the program imports nothing that opens a file with HDF5" eval '! opens'
liar() {  # liar NAME FROM TO WORDS: a manifest that lies
  rm -rf forged && cp -r base forged
  check "$1" forge replace "$2" "$3"
  run 0 generate forged/$at --tokens 1
  expect "... is refused" 6 "$4"
}
liar "a shape whose product is 0" '"shape":[' '"shape":[0,4611686018427387904,4611686018427387904,' "an impossible number of elements"
liar "an offset beyond the file" '"offset":' '"offset":99999999' "does not"
liar "two tensors of one name" '"name":"optimizer/v/' '"name":"optimizer/m/' "two tensors have the name optimizer/m/"

# Weights that are NaN are reported as not finite, and no message claims that a run diverged.
rm -rf forged && cp -r base forged
forge nan parameters/embedding.tokens.weight 7 5
for use in "generate forged/$at --tokens 1" "eval forged/$at" "export forged/$at --format hf --out not_finite.hf"; do
  # shellcheck disable=SC2086
  run 1 $use
  expect "weights that are NaN: ${use%% *}" 4 "the weights of forged/$at are not finite" \
    "parameters/embedding.tokens.weight, first at element 5"
  check "... and no run is called diverged" lacks out "diverged"
done
run 2 train "$debug" "${small[@]}" run.dir=from_not_finite checkpoint.init_from=forged/$at train.max_steps=1 optimizer.decay_steps=20
expect "... nothing begins with them" 4 "are not finite" "parameters/embedding.tokens.weight, first at element 5"

# A full disk is named as the cause, and a run that lost lines of its metrics reports it.
mkdir disk
if mount -t tmpfs -o size=1m tmpfs disk 2>/dev/null; then
  mounted=$work/disk
  mkdir disk/run
  dd if=/dev/zero of=disk/filler bs=1k status=none 2>/dev/null
  train 2 disk/run
  expect "a full run.dir" 6 "No space left on device" "free some space"
  rm disk/filler
  train 2 disk/lossy train.max_steps=2 optimizer.decay_steps=20 optimizer.warmup_steps=1 checkpoint.interval=0
  dd if=/dev/zero of=disk/filler bs=1k count=$(($(df --output=avail disk | tail -n 1) - 100)) status=none
  train 2 disk/lossy train.max_steps=600 optimizer.decay_steps=20 optimizer.warmup_steps=1 checkpoint.interval=0 eval.interval=0
  expect "metrics that lost lines" 0 "cannot write disk/lossy/metrics.jsonl" "could not be written and are missing"
  umount disk && mounted=""
else skip "a full run.dir" "no tmpfs can be mounted"; fi

# Shared memory that killed ranks left on the node.
segment=/dev/shm/vader_segment.attacked.$$.0
if : 2>/dev/null >"$segment"; then
  dd if=/dev/zero of="$segment" bs=1M count=4 status=none
  run 0 doctor --folder .
  rm -f "$segment"
  expect "the doctor counts what killed ranks left" 0 "left over from killed ranks" "rm /dev/shm/"
else skip "the doctor counts what killed ranks left" "/dev/shm cannot be written"; fi

# The lock of the node's shared memory is held by another process that does not release it. The test
# uses another file, because others on this machine use the real one.
cat >room.c <<'EOF'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
int open(const char* path, int flags, ...) {
  int (*real)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
  va_list rest;
  va_start(rest, flags);
  if (strncmp(path, "/dev/shm/choir-", 15) == 0) path = getenv("TEST_ROOM");
  return real(path, flags, va_arg(rest, int));
}
EOF
check "a lock of another program" cc -O1 -shared -fPIC room.c -o room.so -ldl
: >room.lock
flock room.lock sleep 600 &
holder=$!
until grep -q ":$(stat -c %i room.lock) " /proc/locks; do sleep 0.01; done
LD_PRELOAD=$work/room.so TEST_ROOM=$work/room.lock train 2 room parallel.timeout=2
expect "... ends the run on all ranks" 5 "the lock '/dev/shm/choir-$(id -u).lock' of this node's shared memory is held by process" \
  "for more than " "parallel.transport=mpi"
check "... and names its holder" matches out "held by process [0-9]+ \\((flock|sleep)\\)"
stop_hard "$holder"
ln -s precious room.link
LD_PRELOAD=$work/room.so TEST_ROOM=$work/room.link train 2 room parallel.timeout=2
expect "... or is a link" 5 "is a link"
check "... which is not followed" absent precious

# Files of other users under names that can be guessed are neither followed nor removed: the number
# of a process is known before it starts.
mkdir guessed && echo precious >guessed/precious
guess() {  # guess COMMAND ARGUMENT...: COMMAND runs as shell words in guessed/, with $$ of the choir that follows
  local prepare=$1
  shift
  command="choir $*"
  (cd guessed && exec timeout --kill-after=5 $((limit * patience)) sh -c "$prepare"' && exec "$0" "$@"' "$choir" "$@") >out 2>&1 </dev/null
  code=$?
}
untouched() { [ "$(cat guessed/precious)" = precious ] && [ "$(readlink guessed/$1)" = precious ]; }
guess 'ln -s precious .choir_doctor_$$' doctor --folder .
check "doctor (exit code $code)" untouched '.choir_doctor_*'
guess 'ln -s precious choir_bench_readers_$$.bin' bench reader --bytes 1048576 --rounds 1 --folder .
expect "bench reader" 0
check "... beside a link" untouched 'choir_bench_readers_*.bin'
guess 'mkdir choir_bench_checkpoint_$$ && echo precious >choir_bench_checkpoint_$$/precious' \
  bench checkpoint --bytes 1000000 --rounds 1 --folder .
expect "bench checkpoint" 0
check "... beside a folder" eval 'cmp guessed/precious guessed/choir_bench_checkpoint_*/precious'
mkdir -p guessed/run/checkpoints
guess 'ln -s ../../precious run/checkpoints/.write_probe_0' train "$debug" 'data.train=["../text.txt"]' run.dir=run \
  train.max_steps=2 optimizer.warmup_steps=1 optimizer.decay_steps=2 run.walltime=1000
expect "a run that measures the file system" 0 "run.walltime: the first save, of"
check "... beside a link" eval '[ "$(cat guessed/precious)" = precious ] && [ -L guessed/run/checkpoints/.write_probe_0 ]'
check "... leaves nothing" test "$(ls -A guessed guessed/run/checkpoints | grep -c 'write_probe\|bench\|doctor')" = 4
