# shellcheck shell=bash
# Sourced after common.sh by the scripts that build cuDNN plans for cards that this machine lacks.
# Builds the program and the stand-in driver, or prints the reason and ends:
#
#   plans CARD < CASES      builds them for test/cudnn_plans/CARD.json (or a file) and counts its lines
. "$root/test/run/lib/cuda_build.sh"
has_feature CUDNN || not_checked "this build has no cuDNN"
[ -e "$cuda/lib64/stubs/libcuda.so" ] || not_checked "the toolkit has no lib64/stubs/libcuda.so"
check "the program that builds plans" compile plans "$root/test/cudnn_plans/cudnn_plans.cpp" || exit
check "a driver without a device" "$root/test/cudnn_plans/fake_libcuda.sh" "$cuda" "$work/driver" || exit

plans() {  # plans CARD
  local card=$1
  [ -e "$card" ] || card=$root/test/cudnn_plans/$1.json
  LD_LIBRARY_PATH="$work/driver:$cuda/lib64:${LD_LIBRARY_PATH:-}" \
    timeout --kill-after=5 3000 ./plans "$card" >"plans-$1" 2>&1
  if grep -q 'cuDNN cannot be loaded' "plans-$1"; then not_checked "$(grep -o 'cuDNN cannot be loaded.*' "plans-$1")"; fi
  sed -E "s/^(ok|not ok) /\1 $1 /; /passed, .* failed/d" "plans-$1"
  count "plans-$1" || fail "plans for $1" "the program ended early"
}
