#!/usr/bin/env bash
# Hostile input: every program of test/fuzz under libFuzzer, AddressSanitizer and UBSan, for 60
# seconds each (or CHOIR_FUZZ_SECONDS). None may crash, hang, or allocate much memory; invalid input
# must be refused by an error of ours. The programs create the first inputs themselves, and inputs
# that once were findings are in the unit tests. The estimate is 20 minutes on two cores, five of
# them for the build.
. "$(dirname "$0")/../lib/common.sh"
seconds=${CHOIR_FUZZ_SECONDS:-60}
export ASAN_OPTIONS=detect_odr_violation=0 UBSAN_OPTIONS=print_stacktrace=1
export TMPDIR=$work  # files that a crash leaves behind are removed
"$root/.make/deps.sh" --fuzz
make -C "$root" -j"$(env -u OMP_NUM_THREADS nproc)" BUILD="$build" fuzz >make.log 2>&1
check "builds" test "$(find "$build/fuzz" -maxdepth 1 -type f -perm -u+x | wc -l)" -ge 9 || tail -n 20 make.log
for source in "$root"/test/fuzz/*.cpp; do
  name=$(basename "$source" .cpp)
  [ -x "$build/fuzz/$name" ] || { fail "$name" "it was not built"; continue; }
  (cd "$root" && CHOIR_FUZZ_SEEDS=$work/$name "$build/fuzz/$name") >seeds.log 2>&1  # some read files of the tests
  [ "$name" != deck ] || cp "$root"/inputs/*.json "$name"
  check "$name: has inputs to begin with" test -s "$name/0" || tail -n 20 seeds.log
  timeout --kill-after=10 $((seconds + 60)) "$build/fuzz/$name" "$name" -max_total_time="$seconds" -timeout=10 -max_len=8192 \
    -rss_limit_mb=2048 -malloc_limit_mb=1024 -artifact_prefix="$work/found-" -print_final_stats=1 >"$name.log" 2>&1
  code=$?
  runs=$(sed -nE 's/^stat::number_of_executed_units: +//p' "$name.log")
  if [ "$code" = 0 ] && [ "${runs:-0}" -gt 0 ]; then
    pass "$name: $runs inputs, $(grep -oE 'cov: [0-9]+' "$name.log" | tail -n 1 | cut -d' ' -f2) places reached"
  else
    fail "$name" "exit code $code; the input, base64: $(cat found-* 2>/dev/null | head -c 3000 | base64 -w 0)"
    grep -aE -A 25 'ERROR: |runtime error|^finding' "$name.log" | head -n 40 | sed 's/^/    | /'
  fi
  rm -f found-*
done
