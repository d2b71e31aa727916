# shellcheck shell=bash
# Counts of passed, failed and skipped tests. Source this file; test/run/counts.sh tests it.
#
# A test of GoogleTest is run by several programs, or by one on several numbers of ranks, and each
# run that skips it has a reason. Such a test is skipped if no run of all ran it. A check of a
# script, or a part that this machine cannot run, has only one run. A list of skips has a line
# "NAME", tab, "REASON" for each.

# counts_of LOG: prints "PASSED FAILED SKIPPED" of the last line of this kind in a log; nothing if
# there is none.
counts_of() {
  grep -aE '(^|[ =:])[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$1" | tail -n 1 |
    sed -E 's/.*(^|[^0-9])([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?$/\2 \3 \5/; s/ $/ 0/'
}

# skips_of_tests: prints the skips among all outcomes that test programs wrote to files named by
# CHOIR_TEST_OUTCOMES, which are given on standard input.
skips_of_tests() {
  awk -F'\t' -v OFS='\t' '
    $1 == "ran" { ran[$2] = 1 }
    $1 == "skipped" {
      if (!($2 in why)) { names[++n] = $2; why[$2] = $3 }
      else if (index("; " why[$2] "; ", "; " $3 "; ") == 0) why[$2] = why[$2] "; " $3
    }
    END { for (i = 1; i <= n; i++) if (!(names[i] in ran)) print names[i], why[names[i]] }'
}

# tests_of PROGRAM: prints the names of all its tests.
tests_of() {
  "$1" --gtest_list_tests 2>/dev/null | awk '/^[A-Za-z0-9_\/]+\.( |$)/ { suite = $1; next } /^  [A-Za-z0-9_]/ { print suite $1 }'
}

# never_selected NAMES: prints the tests in the file NAMES that are in none of the outcomes on
# standard input.
never_selected() {
  awk -F'\t' -v OFS='\t' 'FNR == NR { met[$2] = 1; next }
    !($1 in met) && !($1 in told) { told[$1] = 1; print $1, "no part of this run selects it" }' - "$1"
}

# skips_of_script NAME LOG: prints the skips in the lines "skipped CHECK: REASON" of a script.
skips_of_script() {
  sed -nE 's/^skipped ([^:]*(:[^ ][^:]*)*): (.*)/\1\t\3/p' "$2" | sed "s|^|$1: |"
}

# by_reason: converts a list of skips on standard input to one line per reason, in the order of the
# first of each.
by_reason() {
  awk -F'\t' '{
      if (!($2 in names)) { reasons[++n] = $2; names[$2] = $1 } else names[$2] = names[$2] ", " $1
      ++count[$2]
    }
    END { for (i = 1; i <= n; i++) printf "  %s (%d): %s\n", reasons[i], count[reasons[i]], names[reasons[i]] }'
}
