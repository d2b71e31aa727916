# shellcheck shell=bash
# Sourced behind common.sh by scripts that need a build with CUDA, and a toolkit, but no GPU:
#
#   setting NAME            a setting of the build (features.mk)
#   not_checked REASON      prints the reason and ends
#   $cuda $objects          the toolkit; an archive of the build's objects
setting() { sed -n "s/^$1 := //p" "$build/features.mk" | tail -n 1; }
not_checked() {
  skip "$(basename "$0" .sh)" "$1"
  exit
}

cuda=$(setting CUDA)
[ -n "$cuda" ] || not_checked "this build has no CUDA"
has_feature() { grep -q "CHOIR_HAVE_$1 1" "$build/choir_cuda_features.hpp"; }

objects=$work/objects.a
(cd "$root" && grep -v '/app/main.o' "$build/objects.txt" | xargs ar rcs "$objects")
# compile OUT SOURCE... : compiles with the flags of the build, and links with its objects.
compile() {
  local out=$1
  shift
  # shellcheck disable=SC2046
  "${MPICXX:-mpicxx}" -std=c++20 -O1 -fopenmp -Wall -Wextra -Wno-missing-field-initializers -I"$root/include" -I"$root" \
    -I"$build" $(setting FEATURE_CPPFLAGS) $(setting CUDA_CPPFLAGS) -o "$out" "$@" "$objects" $(setting GTEST_LIBS) \
    $(setting FEATURE_LIBS) -L"$cuda/lib64" -lcudart_static -ldl -lrt -lpthread
}
# shellcheck source=outcomes.sh
. "$(dirname "${BASH_SOURCE[0]}")/outcomes.sh"
# count LOG: adds the counts of passed and failed tests in a log, and the tests that the program
# recorded as skipped in $CHOIR_TEST_OUTCOMES; false if the log has no counts.
export CHOIR_TEST_OUTCOMES=$work/outcomes
count() {
  local counts good bad name reason
  counts=$(counts_of "$1")
  [ -n "$counts" ] || return 1
  read -r good bad _ <<<"$counts"
  passed=$((passed + good)) failed=$((failed + bad))
  [ -e "$CHOIR_TEST_OUTCOMES" ] || return 0
  while IFS=$'\t' read -r name reason; do skip "$name" "$reason"; done < <(skips_of_tests <"$CHOIR_TEST_OUTCOMES")
  rm "$CHOIR_TEST_OUTCOMES"
}
