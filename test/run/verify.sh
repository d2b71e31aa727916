#!/usr/bin/env bash
# choir verify: every layout trains as one rank does, every broken rule is seen, and nothing runs that was not
# understood. test/run/long/verify.sh runs `--layouts all` and every legal one, more steps and the other precisions.
. "$(dirname "$0")/lib/common.sh"
deck=$root/inputs/verify_gpt.json
limit=170
last() { tail -n 1 stdout; }

run 8 verify "$deck" --layouts quick --json rows.jsonl
expect "at least 30 layouts, every value, on 8 ranks" 0 "precision  fp64" "with every value of every axis"
check "... the last line says so" eval 'last | grep -qE "^VALID: [0-9]+ layouts train as one rank does"'
check "... there are 30 rows" eval '[ "$(grep -c "^dp=.* ok$" stdout)" -ge 30 ]'
check "... as many in the JSON lines" eval '[ "$(grep -c "^dp=" stdout)" = "$(grep -c "^{\"layout\":\"dp=.*\"ok\":true}$" rows.jsonl)" ]'
check "... all within 1e-12" eval '! grep -oE "\"tolerance\":[^,]*" rows.jsonl | grep -v "\"tolerance\":1e-12"'

# Rules broken on purpose, each in a layout where it matters, and in one where it does not.
limit=60
controls=""
broken() {  # broken NAME LAYOUT HARMLESS
  controls="$controls $1"
  run 4 verify "$deck" --layouts "$2,$3" --break "$1"
  expect "$1 is seen" 4 "INVALID: 1 of 2 layouts differ from one rank"
  check "... where it matters" eval 'grep -E "^dp=" stdout | head -n 1 | grep -q "FAIL$"'
}
broken norm-unreduced "dp=2 tp=2 sequence=true" "dp=2 tp=2"
broken kv-unsummed "tp=4" "tp=2"
broken replicated-twice "tp=2" "dp=2"
broken mean-of-means "dp=4" "tp=4"
broken padding-leaks "tp=2" "dp=2"
broken local-smoothing "tp=2" "dp=2"
broken bias-everywhere "tp=2 dp=2" "dp=4"
broken dropout-per-rank "dp=2" "dp=1"
broken loss-unreduced "dp=2 tp=2" "tp=2"
broken batch-off "dp=2" "tp=2"
broken tied-unjoined "pp=2" "dp=2"
broken tied-twice "pp=2" "tp=2"
broken local-norm "pp=2" "dp=2"
broken local-norm "tp=2" "dp=2 zero=1"
broken slice-norm "dp=2 zero=1" "tp=2 pp=2"
broken slice-by-padding "dp=4 zero=1" "dp=4"
broken slice-by-one "dp=2 zero=2" "dp=2"
broken stale-gather "dp=2 zero=1" "dp=2"
broken stale-gather "dp=2 zero=3" "tp=2"
broken groups-unsummed "dp=4 zero=2 zero_group=2" "dp=4 zero=2"
broken micro-batch-lost "pp=2" "dp=4 micro=6"
broken micro-batch-lost "dp=2 zero=2" "dp=4 micro=6 zero=2"
broken micro-batch-twice "pp=2" "tp=2"
broken layer-dropped "pp=2" "tp=2"
broken stage-loss-kept "pp=2" "dp=2"
broken positions-local "cp=2" "dp=2"
broken context-unsummed "cp=2" "dp=2"
broken copies-unsummed "cp=4" "cp=2"
broken mask-redrawn "recompute=full" "recompute=selective"
run 4 verify "$deck" --layouts "dp=2 tp=2 sequence=true,tp=4,dp=4 zero=1,dp=4 zero=2 zero_group=2,pp=2,cp=4,dp=1" --steps 20
expect "without a break they are valid, after 20 steps too" 0 "VALID: 7 layouts"
run 1 verify "$deck" --layouts dp=1 --break mean-of-moons
expect "a rule nobody knows" 2 "there is no rule to break called 'mean-of-moons'" "legal: norm-unreduced"
of_speech="inner-norm-unsummed ids-by-position empty-counted mask-left-out statistics-unreduced"  # verify_asr.sh breaks them
all_broken() {
  local rule
  for rule in $(sed -n 's/.*legal: //p' out | tr -d ,); do
    case "$controls throws-alone throws-everywhere $of_speech " in *" $rule "*) ;; *) echo "$rule was not"; return 1 ;; esac
  done
}
check "every other rule has been broken above" all_broken

# Whoever throws: all ranks of a layout, which is a row; one of them, which leaves the others waiting.
run 4 verify "$deck" --layouts "dp=2,tp=4" --break throws-everywhere
expect "a layout that throws is a row that fails" 4 "thrown on purpose" "INVALID: 2 of 2 layouts"
check "... and the next one runs" eval '[ "$(grep -cE "^dp=.*thrown on purpose.* FAIL$" stdout)" = 2 ]'
run 4 verify "$deck" parallel.timeout=3 --layouts "dp=1,dp=3,tp=4" --break throws-alone
expect "one rank that throws alone ends the job, which names it" 5 "rank 2" "failed alone" "thrown on purpose"
run 0 verify --help
expect "help" 0 "--layouts" "--precision" "exhaustive"
check "... does not tell how to break things" lacks out "--break"

few="dp=2 zero=3,tp=2 sequence=true,pp=2 recompute=full,cp=2 dp=2,dp=2 tp=2 zero=1,tp=2 pp=2 schedule=zb-h1"
run 4 verify "$deck" --layouts "$few" --precision fp32
expect "fp32, by the rounding of one rank" 0 "4 x the distance of one rank in fp32" "VALID: 6 layouts"
run 4 verify "$deck" --layouts "$few" --precision bf16-mixed
expect "bf16" 0 "VALID: 6 layouts"
run 2 verify "$deck" --layouts "tp=2 sequence=true" --precision fp32 --break norm-unreduced
expect "a broken rule is seen in fp32 too" 4 "INVALID: 1 of 1"

run 2 verify "$debug" model.n_layer=1 parallel.tensor=2 --layouts quick --steps 1
expect "any deck, its own layout set aside, its data not read" 0 "97 stands in" "VALID:"
run 0 verify "$deck" --layouts quick --steps 1
expect "without a launcher" 0 "on up to 1 rank" "VALID: 32 layouts"
run 0 verify "$deck" --layouts exhaustive:5 --steps 1
expect "some of all" 0 "5 of 48 legal ones, spread evenly" "VALID: 5 layouts"

run 2 verify "$deck" --layouts "dp=2 speed=2"
expect "an unknown word" 2 "unknown word 'speed'" "legal words: dp=, tp="
run 2 verify "$deck" --layouts "tp=3"
expect "a layout that is not legal" 2 "model.n_head = 8 cannot be divided among parallel.tensor = 3 ranks"
run 2 verify "$deck" --layouts "dp=4"
expect "more ranks than there are" 2 "start with mpiexec -n 4"
run 2 verify "$deck" --precision fp16
expect "another precision" 2 "--precision" "none of fp64, fp32, bf16-mixed"
run 0 verify "$deck" --precision bf16-true
expect "one whose rounding would hide what is wrong" 2 "--precision" "lies so far from fp64" "bf16-mixed"
run 0 verify "$deck" --precision fp16-mixed
expect "one without a tolerance" 2 "--precision" "no tolerance is known" "bf16-mixed"
run 2 verify "$deck" model.n_headz=2
expect "a misspelt override" 2 "model.n_head"
run 2 verify missing.json
expect "no deck" 2 "cannot read the deck 'missing.json'"
run 2 verify "$deck" --layouts dp=2 --json no/such/folder.json
expect "a file that cannot be written" 6 "cannot write 'no/such/folder.json'"
