#!/usr/bin/env bash
# A run directory belongs to one run at a time, even if the file system has no locks: on the same
# host, on another one, and after a run was suspended for so long that another took its directory.
. "$(dirname "$0")/lib/common.sh"
long=(train.max_steps=2000000 optimizer.decay_steps=20 log.interval=20 eval.interval=0)

# flock is not available, and TEST_HOST is the name of this host.
cat >no_locks.c <<'END'
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int flock(int file, int operation) {
  (void)file, (void)operation;
  errno = ENOSYS;
  return -1;
}
int gethostname(char* name, size_t bytes) {
  const char* host = getenv("TEST_HOST");
  strncpy(name, host ? host : "here", bytes);
  return 0;
}
END
check "a file system without locks" cc -O1 -shared -fPIC no_locks.c -o no_locks.so
export LD_PRELOAD=$work/no_locks.so

start 2 train "$debug" "${small[@]}" run.dir=shared "${long[@]}" checkpoint.interval=20 checkpoint.keep=2
first=$pid
check "a run without locks" wait_for out "checkpoint shared/checkpoints/step_00000020"
mv out first.out
owner=$(cut -d' ' -f2 shared/in_use)
ranks=$(pgrep -P "$first")
# shellcheck disable=SC2086
kill -STOP $ranks
train 2 shared "${long[@]}" checkpoint.interval=1000000
expect "another one on this host, where processes are seen" 6 "another run (process $owner on here) is using the run directory 'shared'" "choose another run.dir"
check "... and leaves the log of the first one alone" lacks shared/log.txt "ended with exit code"
check "... is refused once" test "$(grep -c 'is using the run directory' out)" = 1

# The first run is suspended, gives no sign of life for 15 s, and another host takes its directory.
TEST_HOST=elsewhere start 0 train "$debug" "${small[@]}" run.dir=shared "${long[@]}" checkpoint.interval=1000000
second=$pid
check "another one on another host" wait_for out "'shared' was left in use by process $owner on here: waiting for a sign of life"
check "... takes its directory" wait_for out "ready after"
mv out second.out
contents() { (cd shared/checkpoints && ls && cat step_*/manifest.json) | cksum; }
before=$(contents)
# shellcheck disable=SC2086
kill -CONT $ranks
pid=$first
end 60  # a save that was suspended looks for its files for a minute
cp first.out out
expect "the suspended run stops when it wakes up" 6 "this run does not own the run directory 'shared' any more: the run (process $second on elsewhere) has taken it over"
check "... without a touch at the checkpoints of the other" test "$before" = "$(contents)"
check "... or at its lock" has shared/in_use "elsewhere $second "
kill -USR1 "$second"
pid=$second
end 15
cp second.out out
expect "the other one goes on" 75 "stopping after step" "checkpoint shared/checkpoints/step_"
check "... and frees the directory" absent shared/in_use

# A run that was killed blocks nobody on its own host.
start 0 train "$debug" "${small[@]}" run.dir=shared "${long[@]}" checkpoint.interval=1000000
check "a run to be killed" wait_for out "step="
kill -9 "$pid"
wait "$pid" 2>/dev/null
check "... leaves its lock" test -e shared/in_use
last=$(newest shared)
train 0 shared "${long[@]}" checkpoint.interval=1000000 fault.enable=true fault.stop_step=$((10#${last#step_} + 1))
expect "... which is taken over at once" 75 "resumed from"
check "... without a wait" lacks out "waiting for a sign of life"
