#!/usr/bin/env bash
# Random decks: each legal one trains in two layouts as on one rank, and each one with a broken key
# is refused with exit code 2, by name, within a second of processor time. A failure prints the
# command that repeats it. This test has 12 and 100 decks; test/run/long/drawn_decks.sh has 300 and
# 2,000, which include every named value.
. "$(dirname "$0")/lib/common.sh"
seed=42 legal=12 broken=100 started=16 complete=""
[ "${2:-}" != --all ] || { legal=300 broken=2000 started=400 complete=--complete; }
drawn() { (cd "$root" && "$build/drawn_decks" "$@"); }
limit=120

drawn legal "$legal" "$seed" $complete >decks 2>drawn
code=$?
cp drawn out
command="drawn_decks legal $legal $seed $complete"
expect "legal decks: half of the draws or more are accepted${complete:+, and every value with a name occurs}" 0 "% refused"
[ -z "$complete" ] || cat drawn
while read -r number ranks words; do
  eval "set -- $words"
  shift
  deck=$root/$1
  shift
  run "$ranks" verify "$deck" "$@"
  expect "deck $number: ${deck##*/}" 0 "VALID: " || echo "    again: $ranks ranks of choir $words"
done <decks
check "... as many as asked for" test "$(wc -l <decks)" = "$legal"

mkdir broken
drawn broken "$broken" "$seed" 0 "$work/broken" >out 2>kinds
code=$?
command="drawn_decks broken $broken $seed"
expect "broken decks" 0 "$broken decks, 0 findings"
check "... of every kind" test "$(wc -l <kinds)" = 10
[ -z "$complete" ] || cat kinds
TIMEFORMAT='%U %S'
for number in $(seq 0 $((started - 1))); do
  mapfile -t overrides <"broken/$number.overrides"
  { time run 0 train "broken/$number.json" run.dir=never ${overrides[@]+"${overrides[@]}"}; } 2>seconds
  expect "broken deck $number" 2 "$(cat "broken/$number.name")" || head -c 2000 "broken/$number.json"
  check "... within a second" awk '{ print; exit !($1 + $2 < 1) }' seconds
done
check "nothing was started" absent never
