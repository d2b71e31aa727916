#!/usr/bin/env bash
# choir plan: the memory that train would allocate, computed by one process without mpiexec, and the
# layouts that fit.
. "$(dirname "$0")/lib/common.sh"
deck=("$debug" "${small[@]}" model.n_head=4 eval.interval=0 checkpoint.interval=0)

# The lines of the first memory plan, up to its total. (The work follows: that of one rank in train,
# that of each role in plan.)
memory_lines() { sed -n '/^memory plan/,/total per rank/p' "$1" | sed '1d' | sed '/total per rank/q'; }
equal_plans() {  # equal_plans NAME RANKS OVERRIDE...: train on RANKS ranks, then plan for them
  local name=$1 ranks=$2
  shift 2
  run "$ranks" train "${deck[@]}" run.dir="run_$name" train.max_steps=2 "$@"
  expect "$name: trains" 0 "summary:" || return
  memory_lines "run_$name/start.txt" >trained
  run 0 plan --all "${deck[@]}" --ranks "$ranks" --gpus-per-node "$ranks" "$@"
  expect "$name: is planned" 0 "FITS: " "$ranks rank"
  memory_lines stdout >planned
  check "$name: the plan is what train wrote" diff trained planned
  check "$name: ... and not empty" has planned "total per rank"
}
equal_plans one 1
equal_plans data 2
equal_plans tensor 2 parallel.tensor=2
equal_plans sequence 4 parallel.tensor=2 parallel.sequence=true train.precision=bf16-mixed
# Negative control: another micro-batch has another plan.
run 0 plan --all "${deck[@]}" --ranks 4 --gpus-per-node 4 parallel.tensor=2 parallel.sequence=true train.precision=fp32
memory_lines stdout >other
check "another precision, another plan" eval '! diff -q other planned'

run 2 train "${deck[@]}" run.dir=report train.max_steps=1 parallel.tensor=2
expect "train reports its layout" 0 "  layout     dp=1 tp=2 pp=1 cp=1"
started "... with its groups" report "layout: dp=1 tp=2 pp=1 cp=1 on 2 ranks, one node" "  tp       2  {0,1}" \
  "tp 0 of 2: previous rank 1, next rank 1"
check "... once" test "$(grep -c '^layout:' report/start.txt)" = 1

# A large model on many cards, without mpiexec, data and GPUs.
large=("$root/inputs/bench_d.json" model.n_layer=48 model.n_embd=6144 model.n_head=48 model.block_size=2048
  model.vocab_size=51200 train.precision=bf16-mixed train.micro_batch_size=1 train.global_batch_size=1024)
run 0 plan "${large[@]}" --ranks 1024 --target h200 --json plan.json
check "a summary has at most 25 lines" test "$(wc -l <stdout)" -le 25
expect "... and the parts of the memory, the first layouts and the way to the rest" 0 "  memory of the fullest rank, 0, in dp=" "optimizer moments" \
  "; in all " "  12 more fit; --all prints them with reasons, and the whole plan" "further layouts are legal and not shown"
expect "1024 cards" 0 "layouts of 1,024 ranks, 8 a node, that fit into 136.2 GiB a rank" "128 nodes of 8" "  use: "
check "... as JSON" has plan.json '"choices"'
check "... in which something fits" matches plan.json '"fits": true'
check "... the answer first" eval 'head -n 1 stdout | grep -qE "^FITS( IN ANOTHER LAYOUT)?: gpt, [0-9,]+ parameters, on 1,024 ranks \(128 nodes of 8 ranks\), H200"'
run 0 plan --all "${large[@]}" --ranks 1024 --target h200
expect "--all prints all of it" 0 "memory plan of every rank:" "total per rank" "moments spread over"
run 0 plan "$debug" "${small[@]}" model.n_layer=4 --ranks 4 parallel.pipeline=3
expect "an axis that the ranks do not fill is named, with its legal values" 2 \
  "no layout of 4 ranks is legal for this deck: " "parallel.pipeline = 3 is not legal here; legal: 1, 2, 4"
run_broken axis-unnamed 0 plan "$debug" "${small[@]}" model.n_layer=4 --ranks 4 parallel.pipeline=3
check "... a program that does not name it is noticed" lacks out "parallel.pipeline = 3 is not legal here"
run 0 plan "$debug" "${small[@]}" --ranks 5 train.micro_batch_size=4
expect "ranks that the deck as written does not fit" 2 "as written, the deck does not run on 5 ranks" "the layouts in the table below are legal"
check "... an override is replaced, not given twice" test "$(grep -o 'train.micro_batch_size=' <<<"$(grep '^  type ' stdout)" | wc -l)" = 1
run 0 plan llama3.1-8b --nodes 1 --gpus A100-80GB
expect "the newer name of a model" 0 "FITS: gpt, 8,030,261,248 parameters, on 8 ranks"
run 0 plan llama3-9b --ranks 8
expect "a name that is not there" 2 "did you mean 'llama3-8b'? Models known by name: gpt2, " "llama3.1-8b"
run 0 plan llama3-8b --nodes 1 --gpus A100-80GB
expect "a model by its name, nodes and cards as people say them" 0 "FITS: gpt, 8,030,261,248 parameters, on 8 ranks of one node, A100" \
  "assumed     8 GPUs a node" "type        build/choir plan llama3-8b --nodes 1 --gpus A100-80GB --out llama3-8b.json" \
  "then        jobs/launch -n 8 build/choir train llama3-8b.json"
check "... without times" eval 'tr -s "\n " " " <stdout | grep -q "not known: --calibration assumed predicts it"'
check "... or an order by them" has stdout "to order by predicted time: --calibration FILE (from choir calibrate) or --calibration assumed"
check "... above a layout that fits" eval 'sed -n 2p stdout | grep -qE "^  simplest .* [0-9]{2} %$"'
check "... which is named" matches stdout "^  plain       .*, [0-9]{3} %: TOO LARGE$"
run 0 plan llama3-8b --nodes 1 --gpus A100-80GB --out llama3-8b.json
expect "... whose deck is written when asked" 0 "written     llama3-8b.json (the simplest layout)" "type        jobs/launch -n 8 build/choir train llama3-8b.json"
run 0 plan llama3-8b --nodes 4 --gpus A100-40GB --calibration assumed
expect "rows of unequal batches" 0 "global batches differ: train.global_batch_size=" " tokens"
check "... of which the time is known" lacks stdout "not known"
run 0 plan llama3-8b --nodes 4 --gpus A100-40GB --calibration assumed train.global_batch_size=32
check "... or of equal ones" lacks stdout "global batches differ"
run 0 plan llama3-8b.json --nodes 2 --gpus A100-80GB --gpus-per-node 4
expect "... and planned as written" 0 "FITS: gpt, 8,030,261,248 parameters, on 8 ranks (2 nodes of 4 ranks)" "as written  dp=8"
for card in B200-180GB GH200 L40S; do
  run 0 plan gpt2 --nodes 1 --gpus $card
  expect "$card is known" 0 "FITS: gpt" "${card%%-*}"
done
run 0 plan gpt2 --nodes 1 --gpus MI300X
expect "a card without kernels is planned by its memory" 0 "FITS: gpt" "MI300X 192 GB" "choir has no kernels for this card"
run 0 plan gpt2 --nodes 1 --gpus MI300X --calibration assumed
expect "... not by times" 2 "there are no assumed times for MI300X"
run 0 plan gpt2 --nodes 2 --gpus 3 --target h100
expect "... and cards by their number" 0 "on 6 ranks (2 nodes of 3 ranks), H100"
run 0 plan gpt2 --nodes 0
expect "no nodes" 2 "below 1"
run 0 plan gpt2 --nodes 2 --ranks 3
expect "nodes and ranks that differ" 2 "--ranks 3 are not --nodes 2 of equally many ranks" "--nodes with --gpus-per-node, or --ranks alone"
run 0 plan gpt2 --nodes 2 --ranks 8 --target h100
expect "nodes and ranks" 0 "on 8 ranks (2 nodes of 4 ranks)"
run 0 plan --all "${large[@]}" --ranks 1024 --target h200 parallel.tensor=8 parallel.data=128
expect "a fixed layout" 0 "layout: dp=128 tp=8" "FITS: "
check "... and no others" lacks stdout "layouts of"
check "... with the buffers of NCCL" matches stdout '^ *NCCL, about +[0-9.]+ MiB$'
run 0 plan "${large[@]}" --ranks 1024 --target h200 parallel.tensor=8 parallel.data=128 parallel.transport=staged
check "... unless collectives are staged" lacks stdout "NCCL, about"
run 0 plan "${large[@]}" --ranks 1024 --target h200 parallel.tensor=2 parallel.data=128
expect "a fixed layout of other ranks" 2 "parallel.data"
run 0 plan "${large[@]}" parallel.tensor=8 parallel.data=4 --memory 10
expect "a fixed layout that is too large" 2 "TOO LARGE" "nothing fits: dp=4 tp=8" "10.0 GiB"
run 0 plan "${large[@]}" --ranks 8 --target a100-40
expect "a model that is too large for all layouts" 2 "no layout of 8 ranks fits: " "The closest is " "nothing fits: "
run 0 plan "${large[@]}" --ranks 8 --memory 0.000001
expect "memory below the smallest plan" 2 "nothing fits: "
run 0 plan "${large[@]}" --ranks 53 --gpus-per-node 53 --target h200 parallel.context_mode=ulysses
expect "ranks that divide nothing" 2 "as written, the deck does not run on 53 ranks: " "no layout of 53 ranks is legal"

# The time of a step by the makers' figures, also with slower links between nodes.
timed=(plan gpt2 --nodes 2 --gpus 2 --target h100 parallel.data=4)
run 0 "${timed[@]}" --calibration assumed --json fast.json
expect "the time of a step" 0 "predicted step: "
check "... with what it assumes" eval 'tr -s "\n " " " <stdout | grep -q "assumed manufacturers. figures, not measured: 70 % of 989 TFLOP/s (16 bits)"'
run 0 "${timed[@]:0:8}" --calibration assumed
check "... and its columns in the table of layouts" matches stdout "^   #  layout .* memory +step +tokens/s +micro x accum +global +bubble$"
rate() { sed -nE "s/$1/\1/p" stdout | head -n 1; }
check "... the time of the run is that of the layout to type" test "$(rate '^  time +[0-9,]+ steps of ([0-9.]+ m?s):.*')" = "$(rate '^  fastest .*; ([0-9.]+ m?s) a step.*')"
check "... and the times of another one are named" matches stdout "^  predicted step as written: $(rate '^  as written .*; ([0-9.]+ m?s) a step.*'): "
run 0 "${timed[@]}" --calibration assumed --network 0.1 --json slow.json
expect "... with links a tenth as fast" 0 "predicted step: "
seconds() { sed -nE 's/.*"step_seconds": ?([0-9.e+-]+).*/\1/p' "$1" | head -n 1; }
check "... is longer" awk "BEGIN {exit !($(seconds slow.json) > 1.1 * $(seconds fast.json))}"
run 0 "${timed[@]}" --calibration assumed --network 0
expect "links that carry nothing" 2 "--network 0 is not above 0"
run 0 "${timed[@]}" --network 0.1
expect "slower than what?" 2 "--calibration"
run 0 plan --fill 0.85:0.90 --nodes 2 --gpus H100-80GB --calibration assumed
expect "--fill predicts no times" 2 "--calibration"

# ... and by measurements on this machine.
run 2 calibrate --brief --out machine.json
expect "two ranks are calibrated" 0 "part 1 of 4: products and attention of fp32" "part 4 of 4: steps of small models on all ranks" "calibrated in" "calibration of 2 ranks, 2 a node" "all-reduce of 2 ranks in windows" "hidden" \
  "factor while ranks wait for each other: " " x along " " along tp" " along cp" " along dp" " along pp" "written: machine.json"
measured=("$root/inputs/bench_a.json" data.train="[]" data.format=synthetic model.vocab_size=65 --target cpu --calibration machine.json)
run 0 plan "${measured[@]}" --ranks 2 parallel.tensor=2
# Other tests may disturb the calibration, which is then NOISY, and the step is that of the layout as written.
expect "a plan by that" 0 "predicted step" "tp exposed"
check "... which does not say that it has no times" lacks out "not predicted"
run 0 plan "${measured[@]}" --ranks 2 --gpus-per-node 1
expect "... for two nodes" 2 "no times of messages between nodes"
run 0 plan "${measured[@]}" --ranks 2 train.precision=fp64
expect "... for another precision" 2 'does not contain train.precision = "fp64"' "jobs/launch -n 2 $choir calibrate --precision fp32 --precision fp64 --out machine.json" "replaces the file"
sed 's/"waits"/"waited"/' machine.json >touched.json
run 0 plan "${measured[@]/machine.json/touched.json}" --ranks 2
expect "a calibration that was edited" 2 "its checksum differs"
run 0 calibrate --brief --out missing/machine.json
expect "nowhere to write" 6 "missing"

: >empty.json
run 0 plan "${measured[@]/machine.json/empty.json}" --ranks 2
expect "an empty calibration" 2 "the calibration 'empty.json' is empty: it was interrupted" "calibrate --out empty.json"
timeout -s KILL 1 "$choir" calibrate --out cut.json >out 2>&1
check "a calibration that is killed leaves no file" absent cut.json

# One number for the memory of a deck, of which at most a tenth has no name.
memory_of() { sed -nE "s/$1/\\1/p" out | head -n 1; }
run 0 plan gpt2 --ranks 1 --target cpu
expect "a plan names its largest parts" 0 "checkpoint snapshot 1.4 GiB" "no other fits; --all prints the whole plan"
check "... and its table has the same number" test "$(memory_of '^  as written.*: ([0-9.]+ [KMG]iB) of.*')" = "$(memory_of '^ +1  dp=1 .* ([0-9.]+ [KMG]iB) +[0-9]+ %.*')"
one=("$debug" "${small[@]}" run.dir=number train.max_steps=1)
run 0 plan "${one[@]}" --ranks 1 --target cpu
planned=$(memory_of '^  as written.*: ([0-9.]+ [KMG]iB) of.*')
run 0 train --check "${one[@]}"
check "train --check counts as plan does: $planned" test "$(memory_of '^memory: ([0-9.]+ [KMG]iB) for .*')" = "$planned"
run 0 train "${one[@]}"
check "... and so does train" test "$(memory_of '^  memory +([0-9.]+ [KMG]iB) on .*')" = "$planned"

# The largest model for a share of the memory, and its deck.
run 0 plan --fill 0.85:0.90 --nodes 2 --gpus H100-80GB --out filled.json
expect "a model that fills two nodes" 0 "the largest llama-like model that fills 85 to 90 % of 16 ranks (2 nodes of 8, H100 80 GB)" \
  "parameters: " "jobs/launch -n 16 build/choir train filled.json" "is too large"
run 0 plan --all filled.json --nodes 2 --gpus H100-80GB
expect "... whose deck is planned alike" 0 "FITS: the fullest rank is "
share=$(sed -nE 's/^FITS: the fullest.*, ([0-9]+) %.*/\1/p' stdout)
check "... and fills as much ($share %)" eval '[ "$share" -ge 85 ] && [ "$share" -le 90 ]'
run 0 plan --fill 0.5:0.6 --ranks 2 --memory 0.25 --like gpt model.vocab_size=64 train.recompute=full --json fill.json
expect "in other words, as JSON" 0 "the largest gpt-like model that fills 50 to 60 % of 2 ranks" "deck (not written; use --out)" '"recompute": "full"'
check "... with its plan" has fill.json '"layout"'
fill=(plan --fill 0.85:0.90)
run 0 "${fill[@]}" --memory 80
expect "ranks are not said" 2 "--nodes N --gpus"
run 0 "${fill[@]}" --ranks 2 gpt2
expect "a model is named" 2 "--fill chooses the model, but 'gpt2' is given"
run 0 "${fill[@]}" --ranks 2 model.n_layer=3
expect "a size is set" 2 "--fill chooses model.n_layer"
run 0 "${fill[@]}" --ranks 2 --like lama
expect "another family" 2 "unknown --like lama" "llama, gpt"
run 0 "${fill[@]}" --ranks 2 --memory 0.001
expect "nothing fits" 2 "even 2 layers of width 128"
run 0 plan --fill 85-90 --ranks 2
expect "percents" 2 "--fill 85-90 is not a range" "0.85:0.90"
run 0 plan gpt2 --like gpt
expect "--like alone" 2 "--fill"

run 0 plan "${large[@]}" --ranks 0
expect "no ranks" 2 "--ranks 0 is below 1"
run 0 plan "${large[@]}" --ranks 1024 --gpus-per-node 24
expect "nodes that are not full" 2 "1024 ranks do not fill nodes of --gpus-per-node 24" "nearest legal: --gpus-per-node 16 or 32"
run 0 plan "${large[@]}" --ranks 8 --gpus-per-node 0
expect "nodes of nothing" 2 "--gpus-per-node 0 is below 1"
run 0 plan "${large[@]}" --ranks 8 --memory -3
expect "negative memory" 2 "--memory -3 is not an amount of memory" "512MiB, 6GiB"
run 0 plan "${large[@]}" --ranks 8 --memory 81920MiB
expect "memory with a unit" 0 " of 80.0 GiB, "
run 0 plan "${large[@]}" --ranks 8 --target h300
expect "an unknown card" 2 "unknown --target h300" "legal: a100, a100-40, h100, h200, b200" "--memory 62 --gpus-per-node 4"
for card in A100-80G A100-40G H100_80GiB; do
  run 0 plan gpt2 --nodes 1 --gpus $card
  expect "$card is known" 0 "FITS: gpt" "${card%%[-_]*}"
done
run 0 plan gpt2 --gpus H10-80GB
expect "... as --gpus, its names" 2 "unknown --gpus H10-80GB" "did you mean H100-80GB?" "A100-80GB, A100-40GB, H100-80GB, H200-141GB" "--gpus H100-80GB --memory 62"
run 0 plan gpt2 --gpus 4
expect "a number of GPUs is one node" 0 "on 4 ranks of one node"
run 0 plan gpt2 --nodes 2 --gpus A100-40GB
expect "a job of several nodes" 0 "on SLURM    sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 jobs/generic.slurm gpt2.json" \
  "on PBS      qsub -l select=2:mpiprocs=8:ngpus=8 -v DECK=gpt2.json jobs/generic.pbs"
run 0 plan "$debug" 'data.train=["missing.txt"]' --ranks 2 --calibration nosuch.json
expect "a calibration that is not there is said before the data" 2 "the calibration 'nosuch.json' does not exist" "build/choir calibrate --out nosuch.json"
run 0 plan gpt2 --nodes 1 --gpus A100-40GB parallel.tensor=4 --calibration assumed
expect "an axis of the command line is kept" 0 "FITS" "tp=4"
check "... in every layout" eval '! grep -qE "^ +[0-9]+ +dp=[0-9]+ tp=[^4]" stdout'
check "... and the answer has its time" eval 'sed -n 2p stdout | grep -qE " a step, [0-9,]+ tokens/s$"'
run 0 plan --all llama3-8b --nodes 1 --gpus A100-80GB
check "... no plan of a layout that is too large" eval '! grep -q "^TOO LARGE: " stdout && grep -q "^FITS: the fullest" stdout'
run 0 plan "${large[@]}" --ranks eight
expect "ranks in words" 2 "--ranks"
run 0 plan
expect "no deck" 2 "no deck given"
run 0 plan nowhere.json
expect "no such deck" 2 "nowhere.json"
run 0 plan "$debug" parallel.tenser=2
expect "an unknown key" 2 "parallel.tenser"
run 2 plan "${deck[@]}"
expect "under mpiexec, where the data are asked" 2 "choir plan runs on a single process"
run 0 plan "$debug" 'data.train=["missing.txt"]'
expect "a vocabulary that nobody knows" 3 "missing.txt"
