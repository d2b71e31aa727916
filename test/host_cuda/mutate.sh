#!/usr/bin/env bash
# mutate.sh BUILD [--all]: negative controls of the kernel tests. Takes a barrier, a wait for a copy or a bounds check out
# of a kernel, builds the kernel so, and requires its tests to fail. Without --all one mutation of each kind; with it,
# every place there is. Last line "N passed, N failed".
set -u
build=$(realpath "$1")
all=${2:-}
cd "$(dirname "$0")/../.." || exit 1
build=$(realpath --relative-to=. "$build")  # as make knows it
passed=0 failed=0

# mutations FILE: lines "KIND LINE" of what can be taken out of it.
mutations() {
  grep -nE '^ *__syncthreads\(\);' "$1" | sed -E 's/^([0-9]+):.*/barrier \1/'
  grep -nE '^ *(ptx::)?cp_async_wait<' "$1" | sed -E 's/^([0-9]+):.*/wait \1/'
  grep -nE 'if \([a-z_]+ < (n|rows|width|columns)\)' "$1" | sed -E 's/^([0-9]+):.*/bounds \1/'
}

# mutate KIND LINE FILE: the mutant to standard output.
mutate() {
  case $1 in
    barrier) sed -E "$2s/__syncthreads\(\);/;/" "$3" ;;
    wait) sed -E "$2s/(ptx::)?cp_async_wait<[^;]*;/;/" "$3" ;;
    bounds) sed -E "$2s/ < (n|rows|width|columns)\)/ < \1 + 1)/" "$3" ;;
  esac
}

# The launchers that include FILE, directly or not.
users_of() {
  find "$build/host_plain/kernels" -name '*.cu.d' -exec grep -lE "(^|[ /])$1([ \\]|$)" {} + |
    sed -E 's|.*/host_plain/(.*)\.d|\1|'
}

# try KIND LINE FILE: builds and tests the mutant.
try() {
  local kind=$1 line=$2 file=$3 variant mutants=$build/mutants objects="" op log
  case $kind in barrier) variant=thread ;; bounds) variant=address ;; wait) variant=plain ;; esac
  rm -rf "$mutants"
  mkdir -p "$mutants/$(dirname "$file")"
  mutate "$kind" "$line" "$file" >"$mutants/$file"
  log=$mutants/log
  for op in $(users_of "$file"); do objects+=" $op"; done
  if ! make --no-print-directory BUILD="$build" mutant VARIANT="$variant" MUTANTS="$mutants" MUTATED="$objects" >"$log" 2>&1; then
    echo "not ok $kind of $file:$line: the mutant does not build"; tail -n 5 "$log"; failed=$((failed + 1)); return
  fi
  local filter="*"
  [ "$variant" = thread ] && filter="*Tsan*"
  if FAIL_FAST=1 timeout 600 test/run_shards.sh "$mutants/program" --gtest_filter="$filter" >"$log" 2>&1; then
    echo "not ok $kind of $file:$line was taken out and no test noticed: $(sed -n "${line}p" "$file")"
    failed=$((failed + 1))
  else
    echo "ok $kind of $file:$line taken out: $(grep -m1 -oE 'data race|[a-z-]*buffer-overflow|Failure|DEADLOCK|use-of|runtime error' "$log")"
    passed=$((passed + 1))
  fi
}

for kind in barrier wait bounds; do
  found=0
  for file in $(find kernels -name '*.cuh' | sort); do
    [ "$file" != kernels/cuda/ptx.cuh ] || continue
    while read -r what line; do
      [ "$what" = "$kind" ] || continue
      [ "$all" = --all ] || [ "$found" -eq 0 ] || continue
      found=1
      try "$kind" "$line" "$file"
    done < <(mutations "$file")
  done
  [ "$found" -eq 1 ] || { echo "not ok no $kind found in any kernel"; failed=$((failed + 1)); }
done
[ -n "${KEEP_MUTANTS:-}" ] || rm -rf "$build/mutants"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
