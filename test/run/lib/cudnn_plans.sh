# shellcheck shell=bash
# Sourced behind common.sh by the scripts that build cuDNN plans for cards that are not there. Makes the program and
# the stand-in driver, or says why not and ends:
#
#   plans CARD < CASES      builds them for test/cudnn_plans/CARD.json (or a file) and counts its lines
setting() { sed -n "s/^$1 := //p" "$build/features.mk"; }

not_checked() { pass "cuDNN's plans are not checked here: $1"; exit; }

cuda=$(setting CUDA)
[ -n "$cuda" ] || not_checked "this build has no CUDA"
grep -q 'CHOIR_HAVE_CUDNN 1' "$build/choir_features.hpp" || not_checked "this build has no cuDNN"
[ -e "$cuda/lib64/stubs/libcuda.so" ] || not_checked "the toolkit has no lib64/stubs/libcuda.so"

objects=()
for object in src/core/{dtype,error,shared_library} kernels/attention_cudnn \
  kernels/cuda/{cudnn_api,cudnn_graph,attention_cudnn_graph}; do
  objects+=("$build/obj/$object.o")
done
# shellcheck disable=SC2046
check "the program that builds plans" "${MPICXX:-mpicxx}" -std=c++20 -O1 -Wall -Wextra -I"$root/include" -I"$root" \
  -I"$build" $(setting FEATURE_CPPFLAGS) $(setting CUDA_CPPFLAGS) -o plans "$root/test/cudnn_plans/cudnn_plans.cpp" \
  "${objects[@]}" -lfmt -ldl || exit
check "a driver without a device" "$root/test/cudnn_plans/fake_libcuda.sh" "$cuda" "$work/driver" || exit

plans() {  # plans CARD
  local counts card=$1
  [ -e "$card" ] || card=$root/test/cudnn_plans/$1.json
  LD_LIBRARY_PATH="$work/driver:$cuda/lib64:${LD_LIBRARY_PATH:-}" \
    timeout --kill-after=5 3000 ./plans "$card" >"plans-$1" 2>&1
  if grep -q 'cuDNN cannot be loaded' "plans-$1"; then not_checked "$(grep -o 'cuDNN cannot be loaded.*' "plans-$1")"; fi
  sed -E "s/^(ok|not ok) /\1 $1 /; /passed, .* failed$/d" "plans-$1"
  counts=$(tail -n 1 "plans-$1")
  case $counts in
    *" passed, "*" failed")
      passed=$((passed + ${counts%% *}))
      counts=${counts#*, }
      failed=$((failed + ${counts%% *})) ;;
    *) fail "plans for $1" "the program ended early" ;;
  esac
}
