#!/usr/bin/env bash
# Damaged checkpoints and full disks.
. "$(dirname "$0")/lib/common.sh"

train 2 good
expect "a run with two checkpoints" 0 "good/checkpoints/step_00000020"
state=checkpoints/step_00000020/state.h5
run 1 inspect good/checkpoints/step_00000010 --compare good/checkpoints/step_00000010
expect "a checkpoint holds the same tensors as itself" 0 "EQUAL: " "bit for bit"
run 1 inspect good/checkpoints/step_00000010 --compare good
expect "... and others than the next one" 1 "DIFFERENT: " "first at element "
check "... with the size of the difference" matches stdout "^  [^ ]+: first at .*; largest difference [0-9.e+-]+, relative [0-9.e+-]+; norm of the difference [0-9.e+-]+ of [0-9.e+-]+$"
check "... group by group" matches stdout "^  optimizer/m: [0-9]+ of [0-9]+ equal, [0-9]+ differ, at most by [0-9.]+e-[0-9]+$"
check "... the weights too" matches stdout "^  parameters: 0 of [0-9]+ equal, [0-9]+ differ, at most by "
check "... of the ten worst" test "$(grep -c "first at" stdout)" = 10
# A run that has not saved yet tells when it will.
mkdir -p young/checkpoints
cp good/log.txt young
sed 's/"interval": 10,/"interval": 400,/; s/"max_steps": 20,/"max_steps": 900,/' good/deck.json >young/deck.json
for words in "inspect young" "eval young" "generate young --prompt a"; do
  # shellcheck disable=SC2086
  run 0 $words
  expect "a run without a checkpoint: $words" 6 "no checkpoint in young/checkpoints yet: its run is at step 20 and saves first after step 400 (checkpoint.interval)" \
    "touch young/stop_now"
done
damage() { rm -rf damaged; cp -r good damaged; }
falls_back() {  # falls_back NAME WORDS
  train 2 damaged
  expect "$1: the one before is taken" 0 "passed over a damaged checkpoint" "step_00000020" "$2" \
    "resumed from damaged/checkpoints/step_00000010" "20 (10 now)"
  check "$1: the end is the same" same_tensors good damaged
}
middle=$(($(file_bytes good/$state) / 2))
damage; flip_byte damaged/$state $middle
falls_back "a flipped byte" "crc32c"
damage; flip_byte damaged/$state 40
falls_back "a flipped byte of HDF5's own" "damaged"
damage; truncate -s $middle damaged/$state
falls_back "a truncated file" "bytes"
damage; truncate -s 300 damaged/checkpoints/step_00000020/manifest.json
falls_back "a truncated manifest" "manifest"
damage; rm damaged/$state
falls_back "a file that is gone" "state.h5"

damage
for step in 10 20; do flip_byte "damaged/checkpoints/step_000000$step/state.h5" $middle; done
for ranks in 1 2; do
  train $ranks damaged
  expect "every checkpoint damaged, $ranks rank(s)" 6 "step_00000010" "step_00000020"
done
check "... and none was touched" test -s damaged/$state
run 1 generate damaged --tokens 1
expect "generate from damaged checkpoints" 6 "step_00000020"
run 1 generate damaged/checkpoints/step_00000020 --tokens 1
expect "generate from the damaged one" 6 "step_00000020"
run 1 eval nowhere
expect "eval of nothing" 6 "nowhere"

train 2 full fault.enable=true fault.disk_full_step=20 train.max_steps=30 optimizer.decay_steps=20
expect "a full disk at step 20" 0 "checkpoint of step 20 FAILED, training goes on" "no space left on device" \
  "checkpoint       full/checkpoints/step_00000030"
train 2 all train.max_steps=40 optimizer.decay_steps=20 checkpoint.keep=0
expect "checkpoint.keep=0" 0 "summary:"
check "... keeps all" test "$(ls all/checkpoints | grep -c '^step_')" = 4
check "nothing is left of the failed save" absent full/checkpoints/step_00000020
check "... nor of its beginnings" test -z "$(ls full/checkpoints | grep tmp)"
train 2 full_at_end fault.enable=true fault.disk_full_step=20
expect "a full disk at the end" 6 "checkpoint of step 20 FAILED: " "checkpoint       full_at_end/checkpoints/step_00000010 (1 failed)" \
  "the state after step 20 was not saved: exit code 6; the same command continues from full_at_end/checkpoints/step_00000010"
train 2 full_at_end
expect "... continues when there is room" 0 "resumed from full_at_end/checkpoints/step_00000010" "20 (10 now)"
check "... to the same end" same_tensors good full_at_end

# A disk that is really full: it has room for a few checkpoints.
mkdir disk
if mount -t tmpfs -o size=2m tmpfs disk 2>/dev/null; then
  mounted=$work/disk
  dd if=/dev/zero of=disk/filler bs=1k count=100 status=none
  train 2 disk/run train.max_steps=60 optimizer.decay_steps=20 checkpoint.keep=0
  expect "a small disk fills up" 6 "FAILED, training goes on" "checkpoint of step 60 FAILED: " "summary:"
  rm disk/filler
  run 2 eval disk/run
  expect "what was saved before is intact" 0 "val_loss="
  dd if=/dev/zero of=disk/filler bs=1k status=none 2>/dev/null
  train 2 disk/other train.max_steps=12
  check "a disk without any room is told by the exit code" test "$code" = 6
  dd if=/dev/zero of=disk/filler bs=1k count=$(($(rm disk/filler; df --output=avail disk | tail -n 1) - 300)) status=none
  train 2 disk/warned train.max_steps=2 optimizer.decay_steps=20 optimizer.warmup_steps=1 eval.interval=0
  expect "a disk without room for a save is told at the start" 6 "saves would fail; choose another run.dir or make room"
  run 0 runs disk
  check "... and its run is not finished, but not saved" matches stdout "^disk/warned  *not saved  *2/2"
  umount disk && mounted=""
else skip "a small disk fills up" "no tmpfs can be mounted"; fi

# The newest checkpoint cannot be read for a while: the run reports the reason, continues from an
# older one on a new branch, and stays on that branch when the checkpoint can be read again.
cat >refuse.c <<'EOF'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
static int refused(const char* path) {
  const int no = strstr(path, "/step_00000020/") != 0;
  if (no) errno = EACCES;
  return no;
}
int open(const char* path, int flags, ...) {
  int (*real)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
  va_list rest;
  va_start(rest, flags);
  return refused(path) ? -1 : real(path, flags, va_arg(rest, int));
}
int stat(const char* path, struct stat* status) {
  int (*real)(const char*, struct stat*) = (int (*)(const char*, struct stat*))dlsym(RTLD_NEXT, "stat");
  return refused(path) ? -1 : real(path, status);
}
EOF
check "a checkpoint without permissions" cc -O1 -shared -fPIC refuse.c -o refuse.so -ldl
damage
LD_PRELOAD=$work/refuse.so train 2 damaged train.max_steps=15 optimizer.decay_steps=20
expect "... is called so" 0 "passed over a checkpoint that cannot be read: step_00000020" "Permission denied" \
  "resumed from damaged/checkpoints/step_00000010" "begins after step 10" "15 (5 now)"
check "... and not unfinished" lacks out "never finished"
train 2 damaged train.max_steps=16 optimizer.decay_steps=20
expect "... when it can be read again, the branch begun meanwhile goes on" 0 "resumed from damaged/checkpoints/step_00000015" \
  "passed over a checkpoint of another branch: step_00000020" "which the run left after step 10" \
  "checkpoint.resume=damaged/checkpoints/step_00000020 continues from it" "16 (1 now)"
train 2 damaged checkpoint.resume=damaged/checkpoints/step_00000020 train.max_steps=22 optimizer.decay_steps=20
expect "... or is chosen by name" 0 "resumed from damaged/checkpoints/step_00000020" "22 (2 now)"
train 2 damaged train.max_steps=23 optimizer.decay_steps=20
expect "... and goes on then" 0 "resumed from damaged/checkpoints/step_00000022" "23 (1 now)"
check "... without a word about the others" lacks out "passed over"
damage
mv damaged/checkpoints/step_00000020 away && ln -s "$work/not_mounted" damaged/checkpoints/step_00000020
train 2 damaged
expect "a checkpoint on a file system that is away" 0 "that cannot be read: step_00000020" "cannot follow the link to $work/not_mounted" \
  "resumed from damaged/checkpoints/step_00000010"

# Over NFS and Lustre a host may see new files of another one late. Rank 1 is told at every first
# look at a state that it does not exist, then that its handle is stale, then that it is half as
# long.
cat >late.c <<'EOF'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
static int looks, half = -1;
static int far_away(const char* path) {
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  return rank && strcmp(rank, "1") == 0 && strstr(path, "/state.h5");
}
int open(const char* path, int flags, ...) {
  int (*real)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
  va_list rest;
  va_start(rest, flags);
  const int file = real(path, flags, va_arg(rest, int));
  va_end(rest);
  if (file < 0 || !far_away(path) || looks++ % 4 == 3) return file;
  errno = looks % 4 == 1 ? ENOENT : ESTALE;
  if (looks % 4 == 3) return half = file;
  return -1;
}
int fstat(int file, struct stat* status) {
  int (*real)(int, struct stat*) = (int (*)(int, struct stat*))dlsym(RTLD_NEXT, "fstat");
  const int code = real(file, status);
  if (file == half) status->st_size /= 2, half = -1;
  return code;
}
EOF
check "a host that sees late" cc -O1 -shared -fPIC late.c -o late.so -ldl
export LD_PRELOAD=$work/late.so
train 2 late
expect "... saves" 0 "late/checkpoints/step_00000020"
train 2 late train.max_steps=30
expect "... and resumes" 0 "resumed from late/checkpoints/step_00000020"
unset LD_PRELOAD
check "... the same" same_tensors good/checkpoints/step_00000020 late/checkpoints/step_00000020
