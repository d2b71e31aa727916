#!/usr/bin/env bash
# choir report: the page of runs that completed, stopped, crashed or lost lines; TensorBoard events;
# the progress line.
. "$(dirname "$0")/lib/common.sh"

# A run that is stopped, continued, and ends.
train 2 a fault.enable=true fault.stop_step=7 log.tensorboard=true
train 2 a log.tensorboard=true log.prometheus=a.prom
expect "a run with a stop" 0 "resumed from"
run 0 report a
expect "a report into the run directory" 0 "a/report.html"
page=a/report.html
for words in "Training loss" "Validation loss" "Learning rate" "Throughput" "Time per step" \
  "Memory: plan and use" ">planned " "dp 2 x tp 1 x pp 1 x cp 1" "rank 1: dp 1" "Events" "stopping after step 7" \
  "resumed from" ">restart<" "Samples and transcripts" "optimizer.learning_rate" "Provenance" "revision"; do
  check "... has $words" grep -q -- "$words" $page
done
check "... the loss is that of the summary" has $page \
  "<dt>loss</dt><dd>$(sed -n 's/^  loss  *//p' a/log.txt | tail -n 1) <small>of step 20<"
check "... needs nothing from elsewhere" eval "! grep -qE 'https?:|src=|@import|url\\(' $page"
check "... has one script, which shows the values under the pointer" eval '[ "$(grep -o "<script" $page | wc -l)" = 1 ] && grep -q "svg.dataset.values" $page'
check "... and the values" matches $page 'data-values="\{&quot;at&quot;'
check "... the peak that the MFU refers to" matches $page "100 % is [0-9.e-]+ TFLOP/s: a product of [0-9]+\^3 in f32, measured at this start"
check "... which the start shows, too" matches a/log.txt "^  mfu        percent of [0-9.e-]+ TFLOP/s: "
check "... no keys of other families" lacks $page model.subsampling
check "... says no note" eval "! grep -q 'class=warn' $page"
check "both starts are in the metrics" test "$(grep -c '"event":"start"' a/metrics.jsonl)" = 2

check "TensorBoard: a file for each start" test "$(ls a/tensorboard/events.out.tfevents.* | wc -l)" = 2
check "... with the version in front" matches "$(ls a/tensorboard/* | head -n 1)" "brain.Event:2"
check "... and the losses" matches "$(ls a/tensorboard/* | tail -n 1)" "train/loss"

cp -r a changed
awk '/"event":"start"/ && ++n == 2 { sub(/"tp":1/, "\"tp\":2"); sub(/"dp":2/, "\"dp\":1") } 1' a/metrics.jsonl >changed/metrics.jsonl
run 0 report changed
check "a layout that changed is told" has changed/report.html \
  "Its layout changed: from step 1 2 ranks = dp 2 x tp 1 x pp 1 x cp 1; from step 8 2 ranks = dp 1 x tp 2 x pp 1 x cp 1"
check "... and one that did not is not" lacks $page "Its layout changed"

run 0 report a --wandb
expect "an offline run of W&B" 0 "a/wandb/offline-run-" "upload with: wandb sync"
check "... that begins as one" eval '[ "$(head -c 4 a/wandb/offline-run-*/run-*.wandb)" = ":W&B" ]'
check "... with every step of both jobs" eval '[ "$(grep -ao "_runtime" a/wandb/offline-run-*/run-*.wandb | wc -l)" = "$(grep -c "\"step\":.*\"loss\"" a/metrics.jsonl)" ]'
printf 'a,b\n' >no_run.csv
run 0 report a no_run.csv --wandb
expect "W&B of what is no run" 2 "--format wandb needs run directories"

check "Prometheus: the last step" eval 'grep -q "^choir_step{run=\"a\"} $(tail -n 1 a/metrics.jsonl | grep -oE "\"step\":[0-9]+" | cut -d: -f2)$" a.prom'
check "... and a name once with its kind" test "$(grep -c '^# TYPE choir_train_loss gauge' a.prom)" = 1
run 0 train "$debug" "${small[@]}" run.dir=b log.prometheus=none/b.prom
expect "Prometheus: no such folder" 6 "log.prometheus: cannot write 'none/b.prom'" "textfile"
check "... every metric has a help text of its own" has a.prom "# HELP choir_speed_step_seconds Wall time of a step in seconds"
run 0 report a --format row
expect "a row for dashboards" 0 '"format":"choir-scale-row-1"' '"data_parallel":2' '"joules_total":'
run 0 train "$debug" "${small[@]}" run.dir=speeds log.interval=1
speed=$(sed -nE 's/^ +speed +([0-9]+) tokens\/s, median of the log.s lines.*/\1/p' out)
run 0 report speeds
check "the speed of the summary on the page" eval 'tr -d , <speeds/report.html | grep -q "<dd>${speed:-none} <small>median of the log"'
run 0 report speeds --format row
check "... and in the row" perl -MJSON::PP -e 'local $/; exit(sprintf("%.0f", decode_json(<STDIN>)->{efficiency}{tokens_per_second}) ne $ARGV[0])' "$speed" <stdout
rm -r speeds
run 0 report a --format mllog --set submission_org=choir --set seed=7
expect "lines for MLPerf" 0 ':::MLLOG {"namespace":""' '"key":"submission_org","value":"choir"' '"key":"seed","value":7' '"key":"run_stop"' \
  "choir: note: submission_benchmark=llama31_8b is an assumption"
run 0 report a --set seed=7
expect "... whose options are only for them" 2 "--set is for --format mllog"
run 0 report a --format mllog --set seed
expect "... and are pairs" 2 "must be KEY=VALUE"

# The tables of a sweep as a computing centre prints them.
cp "$root/bench/results/2026-11-22-scaling-cpu.csv" sweep.csv
run 0 report sweep.csv --tokens 2e9 --price '0.02 EUR' --out sweep.html
expect "a sweep with its goal" 0 "sweep.html"
check "... the time for it" has sweep.html "<th>time for 2,000,000,000 tokens"
check "... its price and ranges" matches sweep.html "<th>EUR for it.*% \\([0-9.]+ to [0-9.]+\\)"
check "... and its provenance" has sweep.html "<h3>Provenance</h3>"
run 0 report sweep.csv --tokens 2e9 --price 0.02
expect "... a price without a currency" 2 "a number and a currency"
mkdir few && ln -s "$(command -v cat)" "$(command -v timeout)" few/
PATH=$PWD/few run 0 report sweep.csv --pdf --out sweep.html
expect "... a PDF without a program that prints" 1 "'sweep.html' is written" "weasyprint"
printf '#!/bin/sh\n%s "$1" "$2"\n' "$(command -v cp)" >few/weasyprint && chmod +x few/weasyprint
PATH=$PWD/few run 0 report sweep.csv --pdf --out sweep.html
expect "... a PDF by WeasyPrint" 0 "sweep.pdf"
check "... whose drawings have styles of their own" matches sweep.pdf '<svg[^>]*><style>text\{'
check "... without variables, which it ignores in a shorthand" eval '! grep -q "var(" sweep.pdf'
check "... and nothing else is left" eval '! ls sweep.*.tmp.html 2>/dev/null'

touch 2026-scaling-x.csv && echo '{"sweep":"weak"}' >2026-scaling-x.jsonl
run 0 report 2026-scaling-x.jsonl
expect "the lines of a sweep" 3 "'2026-scaling-x.jsonl' has the times of all steps of a sweep" "name its rows, 2026-scaling-x.csv"
run 0 bench ops device=cpu --type f32 --seconds 0.001 --csv ops.csv
run 0 bench gemm device=cpu --seconds 0.001 --csv gemm.csv
run 0 report a ops.csv gemm.csv --out roofline.html
expect "a roofline" 0 "roofline.html"
mkdir tables && cp ops.csv tables/
run 0 report tables --out of_folder.html
expect "... of the CSV files of a folder" 0 "of_folder.html"
run 0 report tables --format wandb
expect "... which are no runs" 2 "--format wandb needs run directories, and there is none in 'tables'"
run 0 report a --format promtheus
expect "a format that a run writes itself" 2 "prometheus: a run writes it while it trains, with log.prometheus=FILE"
check "... with the roofs" matches roofline.html "f32 [0-9.,e]+ GFLOP/s</text>"
check "... kernels" has roofline.html "norm_forward"
check "... and phases of the step of the run" has roofline.html "backward of a step of a:"

run 0 report a --format row
check "a row has the family of the model" has out '"model":{"type":"gpt"'
train 1 kept/one
train 1 kept/two checkpoint.keep=1
train 1 kept/two train.max_steps=22
check "the index of a folder has a line for each end of a run" test "$(wc -l <kept/index.jsonl)" = 3
check "... with state, deck and revision" matches kept/index.jsonl '"run":"kept/two","state":"finished".*"deck_crc32c":"[0-9a-f]{8}","revision":"[^"]+'
check "checkpoints of all runs have a line each" matches kept/checkpoints.log 'step=22 kept/two/checkpoints/step_00000022 best_val_loss='
run 0 runs kept --index
expect "... written anew: a line for each run" 0 "kept/index.jsonl: 2 runs"
check "... as \`choir runs --json\` prints them" eval 'run 0 runs kept --json; cmp -s kept/index.jsonl out'
check "a run that is in no folder has none" test ! -e index.jsonl

# A start that is refused leaves the record of the run as it was.
record() { (cd a && cat log.txt metrics.jsonl deck.json start.txt) | cksum; }
before=$(record)
for wrong in model.n_layer=3 run.seed=99 train.micro_batch_size=5 'data.train=["gone.txt"]'; do
  # shellcheck disable=SC2046  # no word, or one
  run 2 train "$debug" run.dir=a $([[ $wrong == data.train* ]] || echo "${small[0]}") "$wrong"
  check "refused: $wrong" test "$code" = 2 -o "$code" = 3
  check "... its record is unchanged" test "$before" = "$(record)"
done
cp -r a touched
run_broken refusal-in-record 2 train "$debug" "${small[@]}" run.dir=touched model.n_layer=3
check "... a program that writes a refusal into the record is noticed" has touched/log.txt "ended with exit code 2"
check "... the last words of a refusal are kept beside it" has a/refused.txt "ended with exit code 3"
run 0 report a
check "... and the report says nothing of a failure" lacks a/report.html "nded with exit code"
run 2 train "$debug" run.dir=fresh 'data.train=["gone.txt"]'
check "a first start that fails leaves its reason in its log" has fresh/log.txt "ended with exit code 3"
cp -r fresh kept/refused
run 0 report kept
expect "the page of a folder leaves it out" 0 "1 run refused before the first step is not shown; the path of a run shows it"
check "... with its reason" lacks kept/report.html "gone.txt"
run 0 report kept/one kept/refused --out named.html
check "... unless it is named" has named.html "gone.txt"

# The times of the ranks are records of metrics.jsonl; the last step is the one that was done, and the newest checkpoint is named.
train 2 times watch.ranks=5 log.interval=7 train.max_steps=20 fault.enable=true fault.stop_step=16
expect "a run with the times of its ranks" 75 "step="
check "... has them as records" has times/metrics.jsonl '"compute":'
run 0 report times
check "... whose report says nothing of damage" lacks out damaged
check "... nor its page" lacks times/report.html damaged
run_broken rank-times-as-steps 0 report times --out mistaken.html
check "... a program that takes them for damage is noticed" has out damaged
check "... the loss is named with the step of its record" matches times/report.html "<dt>loss</dt><dd>[0-9.]* <small>of step 14<"
check "... and names the step that was saved" has times/report.html "<dd>16 <small>of 20"
run 0 runs times
expect "... as the list does" 0 "16/20"
cp -r times imported && rm imported/log.txt imported/metrics.jsonl
run 0 report times imported --out pair.html
expect "an imported run is no fault" 0 "imported: imported: It was imported, and has not trained"
check "... and lacks nothing" lacks out "is missing"

# Several runs.
train 1 b log.interval=5 optimizer.learning_rate=1e-3 run.name='<script>alert(1)'
run 0 report a b --out both.html
expect "two runs" 0 "the decks differ in " "log.interval" "optimizer.learning_rate" "both.html"
check "... the keys that differ are on the page" has both.html "Keys that differ"
check "... a name is only text" lacks both.html '<script>alert'
run 0 report a a
expect "a run beside itself, into the current directory" 0 "report.html"

# Runs that ended badly.
train 2 crashed fault.enable=true fault.kill_rank=1 fault.kill_step=13 checkpoint.interval=5
run 0 report crashed
expect "a run that was killed" 0 "crashed/report.html"
check "... its end is told" has crashed/report.html "The log has no end and no process has it open: killed or crashed"
train 1 diverged optimizer.learning_rate=1e9
expect "a run that diverged" 4 "the loss is"
run 0 report diverged
expect "... its report" 0 "diverged: failed: Ended with exit code 4: step " ": the loss is" "diverged/report.html" \
  "It has no checkpoint: the same command starts it again; lower optimizer.learning_rate first."
cp -r a cut
truncate -s -40 cut/metrics.jsonl
run 0 report cut
expect "a last line that is cut" 0 "the last line of metrics.jsonl is cut off; used up to step 20"
cp -r a damaged
printf '%s\n' '{"step":1e300,"loss":1}' '{"step":100000000000000016,"loss":1}' '{"step":18446744073709551616,"loss":1}' \
  '{"event":"start","layout":{"tp":-1,"cp":-1,"dp":2,"pp":1},"ranks":[{"node":-1},{"node":2147483647}]}' >>damaged/metrics.jsonl
run 0 report damaged
expect "steps that no run has, and a layout that cannot be" 0 "3 lines of metrics.jsonl are damaged and were skipped" \
  "a start record of metrics.jsonl is damaged and was skipped" "damaged/report.html"
run 0 report damaged --wandb
expect "... as a run of W&B" 0 "damaged/wandb/offline-run-"
truncate -s 5G huge.jsonl && mkdir huge && mv huge.jsonl huge/metrics.jsonl
run 0 report huge
expect "metrics of 5 GiB are not read" 3 "metrics.jsonl has more than 4 GiB and was not read"
mkdir empty
: >empty/metrics.jsonl
run 0 report empty
expect "no line of metrics" 3 "metrics.jsonl has no step" "nothing to report: no run has a line of metrics"
run 0 report a empty --out some.html
expect "one run of two without metrics" 0 "empty: metrics.jsonl has no step" "some.html"
run 0 report nowhere
expect "no directory" 3 "no such directory: nowhere"
mkdir other
run 0 report other
expect "no run directory" 3 "no run is below 'other'" "a run directory holds"
run 0 report
expect "nothing named" 2 "paths"
run 0 report a --out nowhere/page.html
expect "a place that cannot be written" 6 "cannot write 'nowhere/page.html'" "give another file with --out"
if mkdir ro && mount -t tmpfs tmpfs "$work/ro" 2>/dev/null; then
  mounted=$work/ro
  cp -r a ro/run && rm ro/run/report.html && mount -o remount,ro "$work/ro"
  run 0 report ro/run
  expect "a read-only run directory" 6 "cannot write 'ro/run/report.html'" "the run directory is not writable: give a file with --out FILE.html"
  run 0 report ro/run --out read.html
  expect "... with --out" 0 "read.html"
else skip "a read-only run directory" "no tmpfs can be mounted"; fi

# Benchmarks.
header="deck,precision,ranks,layout,tok_s,step_ms_med,data_ms,forward_ms,backward_ms,comm_ms,optimizer_ms,other_ms,valid"
printf '%s\n' "$header" "d,fp32,1,dp=1,1000,10,0,4,5,0,1,0,VALID" "d,fp32,2,dp=2,1800,11,0,4,5,1,1,0,VALID" \
  "d,fp32,4,dp=4,9999,11,0,4,5,1,1,0,INVALID" "d,fp32,8,dp" >sweep.csv
run 0 report sweep.csv --out sweep.html
expect "a sweep" 0 "sweep.html"
check "... efficiency" has sweep.html "Efficiency"
check "... 1 row is not drawn" has sweep.html "1 of 3 rows are not VALID"
check "... a cut row is told" has sweep.html "1 line is not a row"
sed -e '1s/$/,noisy/' -e '2s/$/,0/' -e '3s/$/,1/' -e '4,$d' sweep.csv >noisy.csv
run 0 report noisy.csv --out noisy.html
expect "a sweep on a busy machine" 0 "noisy.html"
check "... its noisy row is marked" has noisy.html "dp=2 on 2 ranks NOISY"
sed 's/,VALID/,INVALID/' sweep.csv >invalid.csv
run 0 report invalid.csv
expect "a sweep with no valid row" 3 "none of its 3 rows is VALID"
: >zero.csv
run 0 report zero.csv
expect "a table of 0 bytes" 3 "zero.csv is empty"
run 0 report sweep.csv --out other
expect "a place that is a directory" 6 "cannot write 'other'"
run 0 report "$root/inputs/debug.json"
expect "a file that is no table" 3 "has no column 'ranks'"

# The progress line is redrawn on a terminal, and appears nowhere else.
if command -v script >/dev/null; then
  script -qec "$choir train $debug data.train='[\"text.txt\"]' run.dir=tty log.interval=10000 train.max_steps=700" screen >/dev/null </dev/null
  check "a progress line on a terminal" matches screen "training: [0-9]+ %, .* left   step [0-9]+ of 700   loss"
  script -qec "stty cols 40; $choir train $debug data.train='[\"text.txt\"]' run.dir=narrow log.interval=10000 train.max_steps=700" thin >/dev/null </dev/null
  check "... no wider than the terminal" eval "tr '\\r' '\\n' <thin | sed 's/\\x1b\\[K//g' | awk '/^training:/ { ++n; if (length(\$0) > 39) exit 1 } END { exit !n }'"
  check "... not in the log" eval "! grep -q 'left   step' tty/log.txt"
  script -qec "stty cols 80; $choir train $debug data.train='[\"text.txt\"]' run.dir=lines" wide >/dev/null </dev/null
  tr '\r' '\n' <wide | sed 's/\x1b\[K//g' >wide.txt
  check "the line of a step fits a terminal" awk '/^[0-9:]+ step=/ { ++n; if (length($0) > 80) exit 1 } END { exit n != 20 }' wide.txt
  check "... with the fields that matter most" matches wide.txt '^[0-9:]{8} step=20 loss=[0-9.]+ .*train_loss=[0-9.]+ val_loss=[0-9.]+$'
  check "... and the log has all of it" matches lines/log.txt 'step=20 loss=.* dtf=.* tps_per_gpu=.* val_loss='
else skip "a progress line on a terminal" "script(1) is not installed"; fi
train 0 compact log.style=compact
expect "lines as nanoGPT prints them" 0 "iter 1: loss "
check "... with the losses of an evaluation" matches out '^step 20: train loss [0-9]+\.[0-9]{4}, val loss [0-9]+\.[0-9]{4}$'
check "... and the step behind them" matches out '^iter 20: loss [0-9]+\.[0-9]{4}, time [0-9.]+ms, mfu [0-9.]+%$'
check "... no line with a time stamp" eval '! grep -qE "^\[[0-9]{4}-" stdout'
check "... while the log keeps the whole line" matches compact/log.txt 'step=20 loss=.* dtf=.* val_loss='
train 0 plain log.interval=1000 train.max_steps=400
check "no control characters without a terminal" eval "! grep -q \$'\\033' out"
