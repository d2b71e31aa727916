#!/usr/bin/env bash
# bench/scaling.sh and its parts, with too few steps to measure speed: sweeps, verdicts, refusals,
# interruption, plots; the baselines of `choir bench`.
. "$(dirname "$0")/lib/common.sh"
export CHOIR=$choir SCALING_WORK=$work/runs
deck=("$debug" "${small[@]}")
sweep() {  # sweep ARGUMENT...
  command="scaling.sh $*"
  timeout --kill-after=5 $((limit * patience)) "$root/bench/scaling.sh" --results "$work" --seconds 0.1 --warmup 0 "$@" >out 2>&1 </dev/null
  code=$?
}
rows() { grep -c "^$1" "$work"/*-scaling-"$2".csv; }

sweep --weak --strong --ranks "1 2" --layouts "dp tp2@2 tp3@2 pp4" --global 8 --repeats 2 --name a --no-plots "${deck[@]}"
expect "weak and strong" 0 "weak sweep" "strong sweep" "VALID" "comm %"
check "... serial is explained" has out "by Karp and Flatt"
check "... a row of each point" test "$(rows strong,dp a)$(rows weak,dp a)$(rows strong,tp2 a)" = 221
check "... with origin and environment" grep -q 'OMP_NUM_THREADS' "$work"/*-scaling-a.csv
model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
check "... with the processor" grep -qF ",hosts,cpus,cpu_clocks,gpus,gpu_clocks," "$work"/*-scaling-a.csv
[ -z "$model" ] || check "... its name" grep -qF "\"[\"\"$model\"\"]\"" "$work"/*-scaling-a.csv
[ -z "$model" ] || check "... below the table, too" grep -qF "measured on $model; clocks" "$work"/*-scaling-a.txt
check "... and the times of every step" grep -q '"step_seconds":\[\[' "$work"/*-scaling-a.jsonl
check "... again: nothing is measured twice" eval '[ "$(ls -l --full-time --sort=time runs/a/*.json | md5sum)" = "$(sweep --weak --strong --ranks "1 2" --layouts "dp tp2@2 tp3@2 pp4" --global 8 --repeats 2 --name a --no-plots "${deck[@]}"; ls -l --full-time --sort=time runs/a/*.json | md5sum)" ]'
sweep --strong --ranks 2 --name a "${deck[@]}" train.precision=fp64
expect "another sweep of that name" 2 "holds another sweep" "--fresh"

sweep --strong --ranks 2 --layouts tp2 --global 8 --repeats 1 --no-silent --name none "${deck[@]}" model.n_head=1
expect "a layout that does not fit" 1 "refused: exit code 2, " "n_head" "INVALID: 0 of 1 rows" "nothing to draw"
without=()
for word in "${deck[@]}"; do [[ $word = data.train=* ]] || without+=("$word"); done
sweep --strong --ranks 2 --global 4 --repeats 1 --no-silent --name later --no-plots "${without[@]}" 'data.train=["missing.txt"]'
expect "without data nothing is measured" 3 "'missing.txt'" "nothing was measured, because of the data (exit code 3); every point would fail in this way"
check "... and only one run was tried" test "$(grep -c "^ *[0-9]* of [0-9]*  " out)" = 1
sweep --strong --ranks 2 --global 4 --repeats 1 --no-silent --name refused --no-plots "${deck[@]}" model.n_head=5
expect "a deck that is refused: nothing is measured" 2 "model.n_head" "nothing was measured, because of the deck or the command line (exit code 2)"
check "... and only one run was tried" test "$(grep -c "^ *[0-9]* of [0-9]*  " out)" = 1
sweep --strong --ranks 2 --layouts "tensor=2" --repeats 1 --no-silent --name later --no-plots "${deck[@]}" \
  train.micro_batch_size=4 train.global_batch_size=4
expect "... the corrected command takes its place, with a layout as in a deck" 0 "   4 of 4  strong: tensor=2 on 2 ranks" " left" "VALID: 1 of 1 rows"
check "... with the batch of the command line" test "$(rows "strong,tensor=2,2,4,4," later)" = 1
sweep --dry-run --weak --batch --ranks "1 2" --layouts "dp tp2" "${deck[@]}" train.micro_batch_size=3
expect "a dry run" 0 "with $debug: nothing was started; " "weak     dp                2            3             6" \
  "batch    dp                1            3             3"
check "... starts nothing" lacks out " of 1"
for word in train.grad_accum=2 parallel.data=2 parallel.zero=1; do
  sweep --strong "${deck[@]}" $word
  expect "$word, which the rows vary" 2 "$word: the sweep sets the"
done
sweep --ranks 0 "${deck[@]}"
expect "no ranks" 2 "--ranks: '0' is no whole number"
sweep --strong nowhere.json
expect "no deck" 2 "'nowhere.json' cannot be read"
sweep --strong --layouts ep2 "${deck[@]}"
expect "an unknown layout" 2 "unknown layout 'ep2'"
run 0 bench scaling runs
expect "a folder without a sweep" 3 "'runs' contains no run of a sweep" "choir bench scaling build/scaling/NAME"

sweep --strong --ranks 1 --layouts tp2 --name few "${deck[@]}"
expect "a layout of more ranks than there are" 2 "no layout of 'tp2' fits the ranks (1)"
SWEEP_RANKS=2 sweep --strong --ranks "1 4" --name many "${deck[@]}"
expect "more ranks than a job was given" 2 "--ranks: 4 are more than the 2 that the job was given"
: >file
sweep --strong --name unwritable --results file/results "${deck[@]}"
expect "results that cannot be written" 6 "the folder 'file/results' cannot be written"
mkdir cut && head -c 100 runs/a/reference.g8.json >cut/x.json
run 0 bench scaling cut
expect "a run that is cut" 3 "'cut/x.json' is no run of a sweep" "remove it"
mkdir older && sed 's/"first_gradients"/"other"/' runs/a/reference.g8.json >older/r.json
cp runs/a/strong.dp.n2.*.1.json runs/a/last_place.g8.*.json older
run 0 bench scaling older
expect "runs without what is compared" 3 "'older' contains a file that is not a run of a sweep" "--fresh"

# Runs of a program that did not record its processor: empty cells, and a report of both tables in
# one file.
mkdir unnamed && cp runs/a/*.json unnamed && sed -i -E 's/"cpus":\[[^]]*\],//; s/"cpu_clocks":"[^"]*",//' unnamed/*.json
run 0 bench scaling unnamed --csv unnamed.csv
expect "runs without a processor" 0 "strong sweep" "VALID"
check "... have the same header" test "$(head -n 1 unnamed.csv)" = "$(head -n 1 "$work"/*-scaling-a.csv)"
check "... and say nothing of it" lacks out "measured on"
{ cat "$work"/*-scaling-a.csv; echo "sweep,layout,ranks,tok_s,valid"; echo "strong,older,2,1000,VALID"; } >both.csv
run 0 report both.csv --out both.html
expect "a table with a newer and an older header" 0 "both.html"
check "... the older row is there" has both.html ">older<"
check "... nothing is damaged" lacks both.html "not a row"
[ -z "$model" ] || check "... the processor is named" has both.html "Measured on $model"

# Negative controls, in both precisions: the results of one rank with another batch, without its
# second micro-batch, and with a gradient that stays a part of a sum. None of these gives a row.
make_text other.txt 1500
for precision in fp32 bf16-mixed; do
  mkdir "$precision"
  control() {  # control NAME WORDS TEXT ARGUMENT...: a row of two ranks, alone with its reference
    local name=$1 words=$2 text=$3
    shift 3
    rm -f "$precision/row.json"
    run_broken "${broken-}" 2 bench step "$debug" "data.train=[\"$text\"]" train.precision=$precision train.global_batch_size=8 --warmup 0 --steps 3 --no-ceilings \
      --note sweep=strong --note layout=dp --json "$precision/row.json" "$@"
    run 0 bench scaling "$precision"
    if [ -n "$words" ]; then expect "$precision: $name" 1 "INVALID: 0 of 1 rows" "$words"
    else expect "$precision: $name" 0 "VALID: 1 of 1 rows"
    fi
  }
  for coins in 0 1 2; do
    moved=(--note sweep=reference)
    [ $coins = 0 ] || moved=(--note "sweep=last place" --last-place $coins)
    run 1 bench step "${deck[@]}" train.precision=$precision train.global_batch_size=8 train.micro_batch_size=2 --warmup 0 --steps 3 \
      --no-ceilings --note layout=one "${moved[@]}" --json "$precision/reference.$coins.json"
  done
  control "two ranks are one" "" text.txt train.micro_batch_size=2
  control "two ranks of a tensor are one" "" text.txt train.micro_batch_size=4 parallel.tensor=2 parallel.sequence=true
  control "another batch" "the loss" other.txt train.micro_batch_size=2
  broken=micro-batch-lost control "a micro-batch that is lost" "the norm of the gradient" text.txt train.micro_batch_size=2
  broken=norm-unreduced control "a gradient that is a part of a sum" "_norm.bias, of one rank" text.txt train.micro_batch_size=4 \
    parallel.tensor=2 parallel.sequence=true
done
run 2 bench step "${deck[@]}" --last-place 1
expect "moved weights of several ranks" 2 "--last-place moves the weights of one rank"

# A loss that differs from that of one rank.
mkdir wrong && cp runs/a/reference.g8.json runs/a/last_place.g8.*.json runs/a/strong.dp.n2.*.1.json wrong
sed -i -E 's/"first_losses":\[([0-9]+)\./"first_losses":[9\1./' wrong/strong.*.json
run 0 bench scaling wrong
expect "a loss beside the reference" 1 "INVALID: the loss 9" "of one rank" "INVALID: 0 of 1 rows"

# Interrupted, and continued.
"$root/bench/scaling.sh" --results "$work" --seconds 0.1 --warmup 0 --batch --micro "1 2" --repeats 1 --noise 4 --name b "${deck[@]}" >out 2>&1 </dev/null &
pid=$!
wait_for out "batch: dp on 1 rank,"
kill -TERM "$pid"; wait "$pid"; code=$?
expect "interrupted" 143 "interrupted: " "the same command goes on"
sweep --batch --micro "1 2" --repeats 1 --noise 4 --name b "${deck[@]}"
expect "... continued, with advice" 0 "batch sweep" "VALID: 2 of 2 rows"
if command -v gnuplot >/dev/null; then check "... and plots" test -s "$(echo "$work"/*-scaling-b-batch.png)" -a -s "$(echo "$work"/*-scaling-b-batch.svg)"
  # The ninth layout has the colour of the first, and squares (in SVG point 4) in place of dots.
  awk -F, -v OFS=, 'NR == 1 { print } $1 == "strong" && $2 == "dp" { for (i = 1; i <= 10; ++i) { $2 = "zero" i; print } }' \
    "$work"/*-scaling-a.csv >many.csv
  "$root/bench/plots.sh" many.csv many >out 2>&1
  check "plots of ten layouts" has out "plots in many-strong.png and .svg"
  check "... told apart" test "$(grep -c "href='#gpPt4'" many-strong.svg)" -ge 4 -a "$(grep -c "href='#gpPt6'" many-strong.svg)" -ge 16
else check "... and says why there are no plots" has out "gnuplot is missing"; fi

run 1 bench step "${deck[@]}" --steps 3 --warmup 0 --no-ceilings --json base.json
expect "a baseline" 0 "VALID"
run 1 bench step "${deck[@]}" --steps 3 --warmup 0 --no-ceilings --baseline base.json --tolerance 100
expect "... against it" 0 "against the baseline" "VALID: no regression"
sed -i -E 's/"median_seconds":[^,]*/"median_seconds":1e-9/' base.json
run 1 bench step "${deck[@]}" --steps 3 --warmup 0 --no-ceilings --baseline base.json
expect "... a regression" 1 "INVALID: regression, 1 of 1 rows take more than 1.10 x"
run 1 bench step "${deck[@]}" --baseline nowhere.json
expect "... that is not there" 2 "nowhere.json"
run 1 bench reader --bytes 1048576 --rounds 2 --baseline base.json
expect "... of another bench" 2 "the file is of bench step, and this is reader"
run 2 bench step "${deck[@]}" --no-comm --gradient-noise 2
expect "noise without communication" 2 "--no-comm disables communication"
run 1 bench step "${deck[@]}" train.grad_accum=1 train.global_batch_size=2 --gradient-noise 2
expect "noise of one micro-batch" 2 "only one micro-batch" "train.grad_accum"
run 2 bench collectives parallel.tensor=2 --max-bytes 4096 --repeats 2
expect "collectives along tensor ranks" 0 "all_to_all along tp (2 ranks) by node" "by mpi" "#wrong" "all_to_all_v along tp (2 ranks) by node" "VALID: 40 of 40"
run 2 bench reader --bytes 1048576 --rounds 2
expect "reader" 0 "bw(MiB/s)" "StdDev" "VALID: 5 readers, 0 blocks wrong"
