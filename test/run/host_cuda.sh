#!/usr/bin/env bash
# The whole program on an emulated GPU: it trains, stops, continues, moves to the CPU and back, and
# reports what it cannot do.
. "$(dirname "$0")/lib/common.sh"
choir=$build/choir_host_cuda
[ -x "$choir" ] || { fail "the program on an emulated GPU" "$choir is missing"; exit; }
limit=120
tiny=(train.global_batch_size=4 eval.batches=1 eval.sample_tokens=2 eval.interval=3 checkpoint.interval=3)
half=train.precision=bf16-mixed
gpu() { train "$1" "$2" device=cuda log.verbose=true "${tiny[@]}" "$half" "${@:3}"; }

# close A B: the losses of the same steps differ by no more than a few roundings of bf16 (2^-9 each)
# per layer and step.
close() {
  paste -d' ' <(losses "$1") <(losses "$2") | awk '
    { apart = $2 - $4; if (apart < 0) apart = -apart; if ($1 != $3 || apart > $2 / 128) bad = 1 }
    END { exit bad || NR == 0 }'
}

gpu 1 whole train.max_steps=6
expect "trains" 0 "cuda 0 (host execution" "recorded after 2 steps" "matrix products" "summary:"
train 1 cpu device=cpu "${tiny[@]}" "$half" train.max_steps=6
expect "trains on the CPU" 0 "summary:"
check "losses of the GPU and of the CPU agree" close whole cpu
gpu 1 queued train.max_steps=6 train.cuda_graph=false
expect "trains without a recorded step" 0 "summary:"
check "... with the same bits" same_losses whole queued
gpu 1 early train.max_steps=6 train.programmatic_dependent_launch=true
expect "trains with dependent launches" 0 "summary:"
started "... says that its kernels begin early" early "its kernels begin before the end of the kernel ahead"
check "... with the same bits" same_losses whole early
HOST_CUDA_CAPABILITY=80 gpu 1 older train.max_steps=1 train.programmatic_dependent_launch=true
started "... or that an older card cannot" older "cannot begin early on a card older than sm_90"
gpu 1 late train.cuda_graph=false train.programmatic_dependent_launch=true
expect "... and needs a graph" 2 "train.cuda_graph"
gpu 1 resident data.preload=device train.max_steps=6
expect "gathers its batches on the GPU" 0 "summary:"
started "... where the training data are" resident "training data" "preloaded in device memory"
check "... with the same bits" same_losses whole resident
gpu 2 divided parallel.share_device=true parallel.tensor=2 train.max_steps=3
gpu 2 divided_resident data.preload=device parallel.share_device=true parallel.tensor=2 train.max_steps=3
check "... and on two tensor ranks" same_losses divided divided_resident
gpu 1 documents data.preload=device data.documents=separate data.document_end=0 train.max_steps=1
expect "... not with separate documents" 2 "looks for the ends of documents on the host"
gpu 1 profiled train.max_steps=4 train.profile=2:3 log.interval=1
check "a profiler looks on from before the first to after the last step of train.profile" test \
  "$(grep -oE 'profiler (starts|stops)|step=[0-9] loss' stdout | tr '\n' ,)" = \
  "step=1 loss,profiler starts,step=2 loss,profiler stops,step=3 loss,step=4 loss,"
check "... and weights" same "weights whole" "weights queued"

gpu 1 parts train.max_steps=3
expect "stops after 3 steps" 0 "step_00000003"
gpu 1 parts train.max_steps=6
expect "goes on" 0 "step_00000006"
check "... with the bits of one run" same "weights whole" "weights parts"
train 1 parts device=cpu "${tiny[@]}" "$half" train.max_steps=8
expect "goes on on the CPU" 0 "step_00000008"
gpu 1 parts train.max_steps=9
expect "... and back on the GPU" 0 "step_00000009"
run 1 generate whole --device cuda --tokens 8 --prompt "the "
expect "writes text on the GPU" 0 "the "

# Evaluation tasks: the same numbers as on the CPU, except for roundings of bf16.
echo '{"context": "the king and ", "choices": ["his", "hill", "horse"], "answer": 0}' >words.jsonl
echo '{"context": "over ", "answer": "a hill", "max_tokens": 3}' >spoken.jsonl
tasks() { run 1 eval whole --tasks words.jsonl spoken.jsonl --items "$1.items" device="$1" "${@:2}"; }
tasks cuda
expect "scores tasks on the GPU" 0 "task=words kind=choices items=1 acc=" "task=spoken kind=generation items=1 exact_match="
tasks cpu
same_scores() {
  paste -d' ' <(grep -oE '[-][0-9]+\.[0-9]+' cuda.items) <(grep -oE '[-][0-9]+\.[0-9]+' cpu.items) |
    awk '{ d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > -$2 / 64) bad = 1 } END { exit bad || NR != 3 }'
}
check "... with the numbers of the CPU" same_scores

# Algorithms of products are timed once, and each gives different sums (HOST_CUDA_PACE decides which
# is fast). The choice is stored in checkpoints for resumed runs, which would find another one.
ways() { grep '"way"' "$1/products.json"; }
apart() { ! same "$1" "$2"; }
timed=(model.n_layer=1)
export HOST_CUDA_PACE=1
gpu 1 timed "${timed[@]}" train.max_steps=6
expect "times its products" 0 "summary:"
started "... says which way each goes" timed " on host execution, driver 13.0, cuBLASLt of host execution, timed in" "  proposal "
gpu 1 first_ways "${timed[@]}" train.time_products=false train.max_steps=6
check "... and sums otherwise than by the first ways" apart "weights first_ways" "weights timed"
gpu 1 exact "${timed[@]}" train.reproducible=true train.max_steps=3
check "reproducible runs do not time" test "$(grep -c '^products: ' exact/start.txt)" = 0
check "... because their key is derived" grep -q '"train.time_products": false' exact/deck.json
gpu 1 goes_on "${timed[@]}" train.max_steps=3
rm goes_on/products.json
export HOST_CUDA_PACE=2
gpu 1 goes_on "${timed[@]}" train.max_steps=6
started "goes on by the ways of the checkpoint" goes_on "as in goes_on/checkpoints/step_00000003"
check "... with the bits of one run" same "weights timed" "weights goes_on"
check "... and writes them for reading" same "ways timed" "ways goes_on"
# A step on the CPU carries the choice on.
train 1 goes_on device=cpu "${tiny[@]}" "$half" "${timed[@]}" train.max_steps=7
gpu 1 goes_on "${timed[@]}" train.max_steps=8
started "... also past a step on the CPU" goes_on "as in goes_on/checkpoints/step_00000007"
# Other micro-batches have other products, and a checkpoint may have no choice.
gpu 1 goes_on "${timed[@]}" train.max_steps=9 train.micro_batch_size=1
expect "other products are timed" 0 "goes_on/checkpoints/step_00000008 does not contain bf16 [" "the products were timed again"
gpu 1 untimed "${timed[@]}" train.time_products=false train.max_steps=3
gpu 1 untimed "${timed[@]}" train.max_steps=4
expect "a checkpoint without a choice" 0 "step_00000003 has no choice of algorithms for products: the products were timed again"
# The file serves runs that have no checkpoint with a choice.
cp goes_on/products.json kept
with_file() {  # with_file EXPRESSION: a new run in whose folder is that file, changed by sed
  rm -rf goes_on && mkdir goes_on && sed "$1" kept >goes_on/products.json
  gpu 1 goes_on "${timed[@]}" train.micro_batch_size=1 train.max_steps=1
}
refused() {  # refused NAME EXPRESSION WORDS: the file is useless and reported
  with_file "$2"
  expect "$1" 0 "goes_on/products.json $3" "the products were timed again"
}
with_file ""
started "ways of the file" goes_on "as in goes_on/products.json"
refused "ways of another driver" 's/"driver": "13.0"/"driver": "12.0"/' "was written on host execution, driver 12.0"
refused "ways of other products" 's/"product": "bf16 \[/"product": "bf16 [1/' "does not contain bf16 ["
refused "a damaged file" 's/"way": [0-9]/"way": 8/' "is damaged (way 8 is not one of the"
refused "a file of nothing" 'd' "has no choice of algorithms for products"
unset HOST_CUDA_PACE
gpu 1 never train.time_products=true train.reproducible=true
expect "reproducible runs do not choose by the clock" 2 "train.time_products" "train.reproducible"

# Gradients of biases are added by the kernels of activations, gates and norms; these also apply the dropout of branches.
export HOST_CUDA_KERNELS=$work/kernels
"$build/test_host_cuda_plain" --gtest_filter=CudaTraining.StepsOfSeveralShapesAreRecordedWhenTheyComeAgain >out 2>&1
unset HOST_CUDA_KERNELS
for name in activation_backward+bias glu_backward+bias norm_forward+dropout norm_backward+dropout; do
  check "speech training launches $name" grep -qE "^[0-9]+ ${name/+/\\+}$" kernels
done

# Every kernel waits for earlier ones first. Kernels of text generation may first read weights: their tests compare results.
waits_later() {
  find "$root/kernels" -name '*.cu' -o -name '*.cuh' | xargs awk '
    /__global__/ { head = 1; name = "" }
    head && match($0, /[a-z0-9_]+_kernel\(/) { name = substr($0, RSTART, RLENGTH - 1) }
    first { if ($1 !~ /^(follow|wait_for)_earlier\(\);$/) print name; first = 0 }
    head && /\{$/ { head = 0; first = 1 }'
}
check "kernels wait for earlier ones before anything else, save those of text generation" test "$(waits_later | sort | paste -sd' ')" = \
  "activation_forward_kernel attention_join_kernel attention_one_query_kernel copy_rows_kernel eight_rows_kernel few_rows_kernel gated_forward_kernel norm_forward_kernel rope_halves_kernel rope_neighbours_kernel"

gpu 2 alone
expect "two ranks want one GPU" 2 "parallel.share_device=true"
gpu 2 shared parallel.share_device=true train.max_steps=6
expect "two ranks share it" 0 "staged" "summary:"
check "... and learn the same" close shared whole

# Two GPUs: every method of sharing the work trains, evaluates, samples, saves and continues, staged
# and (except the pipeline) over NCCL.
export HOST_CUDA_CARDS=2
mkdir nccl && ln -s "$build/libnccl_fake.so" nccl/libnccl.so.2
export LD_LIBRARY_PATH=$work/nccl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
layouts=("pipeline=2" "context=2 parallel.zero=3" "tensor=2" "zero=2")
for i in "${!layouts[@]}"; do
  read -r -a layout <<<"parallel.${layouts[$i]}"
  name=${layouts[$i]/parallel./}
  if [ "$i" -gt 0 ]; then
    gpu 2 "nccl$i" "${layout[@]}" parallel.transport=nccl train.max_steps=6
    expect "$name over NCCL" 0 "recorded after 2 steps" "transport nccl" "val_loss" "step_00000006"
    check "... learns the same" close "nccl$i" whole
  fi
  gpu 2 "staged$i" "${layout[@]}" parallel.transport=staged train.max_steps=3
  expect "$name, staged" 0 "not used: steps with transport" "step_00000003"
  gpu 2 "staged$i" "${layout[@]}" parallel.transport=staged train.max_steps=6
  expect "... goes on" 0 "step_00000006"
  check "... and learns the same" close "staged$i" whole
done
gpu 4 four parallel.pipeline=2 parallel.zero=1 parallel.share_device=true train.max_steps=3
expect "four ranks share two GPUs" 0 "ranks share a GPU" "step_00000003"
gpu 4 refused parallel.pipeline=2 train.max_steps=3
expect "... which is not done unasked" 2 "4 ranks for 2 GPU(s)" "parallel.share_device=true"
# Products leave a multiprocessor to collectives in flight; HOST_CUDA_ROOM refuses those that do not.
room=(parallel.tensor=2 parallel.sequence=true parallel.transport=nccl train.max_steps=3)
HOST_CUDA_ROOM=1 gpu 2 room "${room[@]}" parallel.free_sms=1
expect "products leave a multiprocessor to collectives" 0 "step_00000003"
HOST_CUDA_ROOM=1 gpu 2 crowded "${room[@]}"
check "... only if that is asked for" grep -q "on all multiprocessors while a collective is in flight" out
# Nobody calls NCCL while a recorded step replays: the watchdog sees the error.
from=$(now_ms)
NCCL_FAKE_FAIL_AFTER=400 gpu 2 fails parallel.transport=nccl train.max_steps=1000
expect "the network fails during a replay" 5 "failed in phase" "NCCL on dp (ranks 0, 1)" "remote process exited or there was a network error" "exit code 5"
in_time "... which ends the job" $(($(now_ms) - from)) 30000
# Slices of one card (MIG) have UUIDs of their own, and NCCL refuses two of them.
HOST_CUDA_MIG=1 gpu 2 slices train.max_steps=3
expect "two slices of one card" 0 "ranks share a GPU or slices of one" "step_00000003"
# A control group that hides the other GPUs prevents P2P.
HOST_CUDA_ISOLATED=1 gpu 2 isolated train.max_steps=3
expect "each rank sees its own GPU only" 0 "transport nccl" "each of 2 ranks sees only its own GPU" "--gpus-per-node"
HOST_CUDA_ISOLATED=1 NCCL_P2P_DISABLE=1 run 2 doctor
expect "... and doctor says so" 0 "GPU links" "sees only its own GPU" "NCCL_P2P_DISABLE=1: GPUs of a node communicate through host memory"
HOST_CUDA_MIG=1 run 2 doctor
expect "doctor names slices" 0 "(MIG): slices have no P2P" "no P2P between GPUs 0-1"
unset HOST_CUDA_CARDS

# Heads of 64: the attention of sm_90a, which sums in another order than that of older GPUs, and
# learns the same.
wide=(model.attention=own model.n_embd=64 model.n_head=1 model.n_layer=1 model.block_size=160 train.max_steps=3)
gpu 1 hopper "${wide[@]}"
expect "attention of sm_90a" 0 "summary:"
HOST_CUDA_CAPABILITY=80 gpu 1 ampere "${wide[@]}"
expect "... and of sm_80" 0 "summary:"
check "... learn the same" close hopper ampere
check "... by other kernels" apart "weights hopper" "weights ampere"

# The attention of Gemma 2: heads of 256, a soft cap, and a window in every other layer.
gemma=(model.n_embd=32 model.n_head=1 model.head_width=256 model.position=rope model.attention_softcap=50
  model.attention_window=5 model.window_skip_interval=2 train.max_steps=3)
gpu 1 gemma "${gemma[@]}"
expect "heads of 256 with a soft cap" 0 "summary:"
train 1 gemma.cpu device=cpu "${tiny[@]}" "$half" "${gemma[@]}"
check "... learn what they learn on the CPU" close gemma gemma.cpu

# The exact GELU within products is the same function, and sums of another kernel.
gpu 1 joined model.gelu_in_product=true train.max_steps=6
expect "GELU within the products" 0 "summary:"
check "... learns the same" close whole joined
check "... by another kernel" apart "weights whole" "weights joined"
HOST_CUDA_KERNELS=joined.kernels run 1 train "$root/inputs/verify_salm.json" device=cuda train.micro_batches=1 "$half" \
  train.max_steps=2 run.dir=hears model.lm.activation=gelu model.lm.gelu_in_product=true model.encoder.n_head=2 model.encoder.attention_in_one_kernel=true
expect "... in the language model of a SALM" 0 "summary:"
check "... there too by another kernel" has joined.kernels gemm_gelu_gradient
check "... there too by one kernel" has joined.kernels relative_backward
# All gradients of a recogniser's attention in one kernel are the same function, with other roundings.
hears() {  # hears RUN OVERRIDES: three steps
  HOST_CUDA_KERNELS=$1.kernels run 1 train "$root/inputs/verify_asr.json" device=cuda train.micro_batches=1 "$half" \
    train.max_steps=3 run.dir="$1" "${@:2}"
}
hears heard
hears heard_at_once model.attention_in_one_kernel=true
expect "gradients of a recogniser's attention" 0 "summary:"
check "... by one kernel" has heard_at_once.kernels relative_backward
check "... which is off unless it is asked for" lacks heard.kernels relative_backward
check "... learn the same" close heard heard_at_once
gpu 1 no.gelu model.gelu_in_product=true model.activation=relu
expect "... and there is no relu within them" 2 "model.gelu_in_product" "model.activation"

# tune tries the micro-batches that the plan of a card allows, and writes the fastest that ran, also
# if the card has little memory.
tuned=("$debug" "${small[@]}" device=cuda "$half" train.micro_batch_size=1 train.global_batch_size=16 eval.interval=0)
HOST_CUDA_MEMORY=64 run 1 tune "${tuned[@]}" --probe --out tuned.json
expect "tune --probe" 0 "trying it on cuda 0 (host execution" "micro-batch     1 ran, " "micro-batch     2 did not run: out of memory: " "the fastest that ran"
check "... writes the fastest that ran" test \
  "$(sed -nE 's/.*micro_batch_size": ([0-9]+).*/\1/p' tuned.json)" = "$(sed -nE 's/^the fastest that ran: train.micro_batch_size ([0-9]+) .*/\1/p' stdout)"

half=train.precision=fp16-mixed
gpu 1 fp16 train.max_steps=3
expect "fp16-mixed" 0 "loss_scale="
half=train.precision=fp64
gpu 1 fp64
expect "fp64 stays on the CPU" 2 "fp64" "stays on the CPU"
half=train.precision=bf16-mixed
gpu 1 cudnn model.attention=cudnn
expect "cuDNN where there is none" 2 "cuDNN"
gpu 1 large model.n_layer=24 model.n_embd=2048 model.n_head=16
expect "a model larger than the card" 2 "out of memory" "host execution" "gradients" "train.micro_batch_size" "model.tile=4" "parallel.offload=optimizer"
