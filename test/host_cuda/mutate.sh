#!/usr/bin/env bash
# mutate.sh BUILD [--all]: negative controls of the kernel tests. Removes from a kernel a barrier, a
# wait for a copy or for earlier kernels, a bounds check, or the swizzle that keeps a tile free of
# bank conflicts, or lets it wait for earlier kernels only after it has read their results; builds the changed kernel, and requires tests to fail: its own, or those of all
# kernels. Without --all it tries one mutation of each kind, the one that is built soonest; with it,
# every possible mutation. The last line is "N passed, N failed".
set -u
build=$(realpath "$1")
all=${2:-}
cd "$(dirname "$0")/../.." || exit 1
build=$(realpath --relative-to=. "$build")  # by the name that make uses
passed=0 failed=0

# mutations FILE: lines "KIND LINE" of all that can be removed from it.
mutations() {
  grep -nE '^ *__syncthreads\(\);' "$1" | sed -E 's/^([0-9]+):.*/barrier \1/'
  grep -nE '^ *(ptx::)?cp_async_wait<' "$1" | sed -E 's/^([0-9]+):.*/wait \1/'
  grep -nE 'if \([a-z_]+ < (n|rows|width|columns)\)' "$1" | sed -E 's/^([0-9]+):.*/bounds \1/'
  grep -nE '^ *const unsigned moved = c \^' "$1" | sed -E 's/^([0-9]+):.*/banks \1/'
  grep -nE '^ *(wait_for|follow)_earlier\(\);' "$1" | sed -E 's/^([0-9]+):.*/earlier \1/'
  grep -nE -A 1 '^ *wait_for_earlier\(\);' "$1" | sed -nE 's/^([0-9]+)- *choir::end_step\(.*/late \1/p'
}

# mutate KIND LINE FILE: writes the mutant to standard output.
mutate() {
  case $1 in
    barrier) sed -E "$2s/__syncthreads\(\);/;/" "$3" ;;
    wait) sed -E "$2s/(ptx::)?cp_async_wait<[^;]*;/;/" "$3" ;;
    earlier) sed -E "$2s/(wait_for|follow)_earlier\(\);/;/" "$3" ;;
    late) sed -E "$(($2 - 1))d; $2s/$/ wait_for_earlier();/" "$3" ;;
    banks) sed -E "$2s/ c \^ .*;/ c;/" "$3" ;;
    bounds) sed -E "$2s/ < (n|rows|width|columns)\)/ < \1 + 1)/" "$3" ;;
  esac
}

# Launchers that include FILE, directly or not.
users_of() {
  find "$build/host_plain/kernels" -name '*.cu.d' -exec grep -lE "(^|[ /])$1([ \\]|$)" {} + |
    sed -E 's|.*/host_plain/(.*)\.d|\1|'
}

# test_files VARIANT LAUNCHER: the tests in test/cuda that are called as the launcher, else those called as its folder;
# nothing where neither has tests for this variant.
test_files() {
  local name folder=${2#kernels/} files
  for name in "$(basename "$2" .cu)" "${folder%%/*}"; do
    files=(test/cuda/"$name"*_test.cpp)
    [ -e "${files[0]}" ] && { [ "$1" != thread ] || grep -q Tsan "${files[@]}"; } || continue
    printf '%s\n' "${files[@]}"
    return
  done
}
# own_tests VARIANT LAUNCHER...: a filter of GoogleTest, the suites of the test files of all launchers; nothing where a
# launcher has none.
own_tests() {
  local launcher suite files=() all=""
  for launcher in "${@:2}"; do
    mapfile -t files < <(test_files "$1" "$launcher")
    [ "${#files[@]}" -gt 0 ] || return
    while read -r suite; do
      case $all: in *":*$suite.*:"*) ;; *) all+=":*$suite.*" ;; esac
    done < <(sed -nE 's/^TEST(_F|_P)?\(([A-Za-z0-9_]+),.*/\2/p' "${files[@]}" | sort -u)
  done
  echo "${all#:}"
}
variant_of() { case $1 in barrier) echo thread ;; bounds) echo address ;; wait | banks | earlier | late) echo plain ;; esac; }
# cheapest_first KIND: the device code of kernels, those files first that have tests of their own, few launchers and little code.
cheapest_first() {
  local file users
  find kernels \( -name '*.cuh' -o -name '*.cu' \) ! -path kernels/cuda/ptx.cuh ! -path kernels/cuda/launch.cuh | while read -r file; do
    mutations "$file" | grep -q "^$1 " || continue
    mapfile -t users < <(users_of "$file")
    echo "$([ -n "$(own_tests "$(variant_of "$1")" "${users[@]}")" ]; echo $?) ${#users[@]} $(wc -c <"$file") $file"
  done | sort -k1,1n -k2,2n -k3,3n -k4 | sed 's/.* //'
}
# noticed VARIANT FILTER LOG: succeeds if a test fails.
noticed() {
  local filter=$2
  [ "$1" != thread ] || filter=$(sed -E 's/\*(:|$)/*Tsan*\1/g' <<<"$filter")
  ! FAIL_FAST=1 timeout 600 test/run_shards.sh "$build/mutants/program" --gtest_filter="$filter" >"$3" 2>&1
}

# try KIND LINE FILE: builds and tests the mutant.
try() {
  local kind=$1 line=$2 file=$3 variant mutants=$build/mutants objects="" op log own why
  variant=$(variant_of "$kind")
  rm -rf "$mutants"
  mkdir -p "$mutants/$(dirname "$file")"
  mutate "$kind" "$line" "$file" >"$mutants/$file"
  log=$mutants/log
  for op in $(users_of "$file"); do objects+=" $op"; done
  # All of these kernels access a tile alike.
  [ "$kind" != banks ] || objects=$(grep -oE '[^ ]*_forward_bf16\.cu' <<<"$objects" | grep -v hopper)
  if ! make --no-print-directory BUILD="$build" mutant VARIANT="$variant" MUTANTS="$mutants" MUTATED="$objects" >"$log" 2>&1; then
    echo "not ok $kind of $file:$line: the mutant does not build"; tail -n 5 "$log"; failed=$((failed + 1)); return
  fi
  # shellcheck disable=SC2086
  own=$(own_tests "$variant" $objects)
  [ "$kind" != banks ] || own='CudaAttention.TensorCoresTsan'
  if { [ -n "$own" ] && noticed "$variant" "$own" "$log"; } || noticed "$variant" "*" "$log"; then
    why=$(grep -m1 -aoE 'data race|AddressSanitizer: [a-z-]+|runtime error: .*|: Failure$|host_cuda: .*' "$log")
    if [ -z "$why" ]; then
      echo "not ok $kind of $file:$line mutated: tests fail, and none says why"; tail -n 20 "$log"; failed=$((failed + 1)); return
    fi
    echo "ok $kind of $file:$line mutated: ${why#: }"
    passed=$((passed + 1))
  else
    echo "not ok $kind of $file:$line was mutated and no test noticed: $(sed -n "${line}p" "$file")"
    failed=$((failed + 1))
  fi
}

for kind in barrier wait bounds banks earlier late; do
  found=0
  for file in $(cheapest_first "$kind"); do
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
