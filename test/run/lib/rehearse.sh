# shellcheck shell=bash
# Functions that read rehearsals, for test/run/rehearse.sh and test/run/long/rehearse.sh.

rehearse() {  # rehearse NAME RANKS OVERRIDE...: writes NAME.json
  local name=$1 ranks=$2
  shift 2
  run 0 rehearse "$debug" "${small[@]}" --ranks "$ranks" --json "$name.json" train.micro_batch_size=1 eval.interval=0 "$@"
}

# values FILE: prints lines "RANK PHASE GROUP KEY VALUE"; GROUP is "-" for a phase, and so is PHASE
# for a rank.
values() {
  awk -F'[:,]' '
    { gsub(/[ "]/, "") }
    $1 == "rank" { rank = $2; phase = group = "-" }
    $1 == "phases" { phase = "?" }
    $1 == "groups" { group = "?"; if ($2 == "[]") group = "-" }
    $1 == "name" && group == "?" { group = $2; next }
    $1 == "name" { phase = $2; group = "-"; next }
    /^}/ && group != "-" { group = "?" }
    /^\]/ && group != "-" { group = "-" }
    $2 ~ /^[0-9]/ { print rank, phase, group, $1, $2 }' "$1"
}
in_step() { values "$1" | awk -v r="$2" -v g="$3" -v k="$4" '$1 == r && $2 == "step" && $3 == g && $4 == k { print $5 }'; }

# flat MANY FEW [BYTES]: a rank of ten times as many ranks needs no more than a rank of few did,
# except this many bytes for each additional rank: the data that a rank sends to all (16), or the
# padding of slices.
flat() {
  local many=$1 few=$2 bytes=${3:-16} rank more
  more=$(($(ranks_of "$many") - $(ranks_of "$few")))
  check "a step calls no more" test "$(in_step "$many" 0 dp calls)" = "$(in_step "$few" 0 dp calls)"
  check "... and moves no more" awk -v many="$(in_step "$many" 0 dp bytes)" -v few="$(in_step "$few" 0 dp bytes)" -v more=$((more * bytes)) \
    'BEGIN { print many, few, more; exit !(few > 0 && many <= few + more) }'
  for rank in $(values "$many" | awk '$4 == "seconds" && $2 == "-" { print $1 }'); do
    compare_with_first "rank $rank makes as few calls in all" "$rank" calls phases 1.1 20
    compare_with_first "... in at most 12 times the time" "$rank" seconds '- -' 12 0
    echo "measured: rank $rank of $many: $(tail -n 1 check.log | awk '{ printf "%.1f", ($2 > 0 ? $1 / $2 : 0) }') times as long, bound 12"
    compare_with_first "... in as much memory" "$rank" peak '- -' 1.25 $((more * bytes))
  done
}
ranks_of() { sed -nE 's/^  "ranks": ([0-9]+),$/\1/p' "$1"; }
# Compares a rank of $many with rank 0 of $few: the sum over phases or, with '- -', the number of
# the rank itself.
compare_with_first() {  # compare_with_first NAME RANK KEY WHICH FACTOR MORE
  check "$1" awk -v rank="$2" -v key="$3" -v which="$4" -v factor="$5" -v more="$6" '
    $4 != key || $3 != "-" || (which == "- -") != ($2 == "-") { next }
    FNR == NR { if ($1 == 0) few += $5; next }
    $1 == rank { many += $5 }
    END { print many, few; exit !(few > 0 && many > 0 && many <= factor * few + more) }' <(values "$few") <(values "$many")
}
