#!/usr/bin/env bash
# choir import and export: models of other programs are read and written, on one rank and several,
# and their logits agree.
. "$(dirname "$0")/lib/common.sh"
. "$(dirname "$0")/lib/golden_models.sh"

for model in gpt2 smollm3 llama qwen3; do tiny make $model $model; done
# shellcheck disable=SC2086
tiny ids ids.npy ${prompt//,/ }

# logits RANKS RUN FILE [ARGUMENT...]: writes the logits of the prompt.
logits() {
  local ranks=$1 run=$2 file=$3
  shift 3
  run "$ranks" generate "$run" --ids $prompt --logits "$file" "$@"
}
# near FILE TOLERANCE SUM VALUE...: compares with the reference sheet: the sum of the absolute
# values, the first four of row 0, and the first four of row 9.
near() {
  tiny logits "$1" | awk -v most="$2" -v wanted="${*:3}" '{
    n = split(wanted, w, " ")
    for (i = 1; i <= n; i++) {
      v = i == 1 ? $1 : i <= 5 ? $i : $(1 + 9 * 24 + i - 5); d = v - w[i]; if (d < 0) d = -d
      if (d > most * (i == 1 ? 240 : 1) || NF != 241) { print i, v, w[i]; exit 1 }
    }
  }'
}
gpt2="574.57262610 -2.3855116 -1.1444485 0.2459194 1.60420467 -3.3536648 -2.39674135 -1.12713888 0.28951017"
smollm3="209.40929549 -1.24345513 -0.9994453 -0.62504784 -0.16910655 -1.54486787 -1.57272798 -1.39540998 -1.03604666"
qwen3="62.12785340 -0.04792307 -0.10624086 -0.15069841 -0.17549589 -0.34246133 -0.49617491 -0.58515744 -0.59780034"
differ_by_at_most() { awk -v d="$(tiny difference "$1" "$2")" -v most="$3" 'BEGIN { exit !(d <= most) }'; }

# The sheet has eight digits; rounding in fp32 changes logits of 4 by less than 1e-5.
for model in gpt2 smollm3 qwen3; do
  run 1 import $model --out $model.64 train.precision=fp64
  expect "$model in fp64" 0 "largest_share="
  logits 1 $model.64 $model.64.npy
  expect "... its logits" 0 "shape=[10, 24] dtype=float64"
  check "... are those of the sheet" near $model.64.npy 1e-8 ${!model}
  run 2 import $model --out $model.32 --check-ids ids.npy --check-logits $model.64.npy
  expect "$model in fp32 on two ranks, checked" 0 "check: logits agree to"
  logits 2 $model.32 $model.tp.npy --tensor 2
  check "... its logits from a divided model" differ_by_at_most $model.tp.npy $model.64.npy 1e-5
done
# Gradients, too; long/real_models.sh has the other models and layouts.
POSITIONS=10 tiny make gpt2 gpt2.ten
run 1 import gpt2.ten --out gpt2.ten.64 train.precision=fp64
golden_layout gpt2 gpt2.ten.64 1e-10 2 parallel.tensor=2 parallel.zero=1
golden_layout smollm3 smollm3.64 1e-10 4 parallel.pipeline=2 parallel.context=2
golden_layout qwen3 qwen3.64 1e-10 4 parallel.tensor=2 parallel.zero=3
run 4 import llama --out llama.run
expect "llama on four ranks: each reads its share" 0 "parameters=4688 ranks=4 largest_share=1172"
run 1 import llama --out llama.one
check "... and the checkpoint is that of one rank" same_weights llama.run llama.one
check "the file of special tokens is kept" cmp llama/config.json llama.run/tokenizer/config.json

parameters() { tensors "$1" | grep '^parameters/'; }
same_parameters() { same "parameters $1" "parameters $2"; }

# Exported and imported again, bit for bit, with any format, number of ranks and shards.
there_and_back() {  # there_and_back NAME RUN FORMAT WHERE RANKS [ARGUMENT...]
  local name=$1 run=$2 format=$3 where=$4 ranks=$5
  shift 5
  run "$ranks" export "$run" --format "$format" --out "$where" "$@"
  expect "$name, exported on $ranks ranks" 0 "format=$format" || return
  run 2 import "$where" --out "$where.back"
  expect "... and imported" 0 "step_00000000" || return
  check "... is bit for bit the same" same_parameters "$run" "$where.back"
}
there_and_back "GPT-2 for transformers" gpt2.32 hf gpt2.hf 2
there_and_back "Llama for transformers in shards" llama.run hf llama.hf 4 --shard-bytes 6000
check "... of which there are several" test -e llama.hf/model-00002-of-00004.safetensors
there_and_back "GPT-2 for llama.cpp" gpt2.32 gguf gpt2.gguf 1
there_and_back "Llama for llama.cpp" llama.run gguf llama.gguf 2
there_and_back "Qwen3 for transformers" qwen3.32 hf qwen3.hf 2
there_and_back "Qwen3 for llama.cpp" qwen3.32 gguf qwen3.gguf 2
there_and_back "GPT-2 for llm.c" gpt2.32 llmc gpt2.bin 2
# Angles scaled like those of Llama 3 are a tensor of divisors in the file; heads of 64 have enough
# pairs to find the settings behind them.
cat >scaled.json <<'END'
{
  "model": {
    "n_layer": 1, "n_head": 2, "n_embd": 128, "ffn_width": 32, "block_size": 64, "vocab_size": 24, "bias": false,
    "position": "rope", "norm": "rmsnorm", "activation": "swiglu",
    "rope_theta": 500000, "rope_scaling": "llama3", "rope_factor": 8, "rope_original": 8192
  },
  "data": { "format": "synthetic" }, "train": { "max_steps": 1 }, "eval": { "interval": 0 }, "checkpoint": { "interval": 1 }
}
END
run 1 train scaled.json run.dir=scaled
there_and_back "angles of Llama 3 for llama.cpp" scaled gguf scaled.gguf 2
scaling() { grep -E '^ *"rope_(theta|scaling|factor|original|low_factor|high_factor)"' "$1/deck.json" | head -n 6; }
check "... with their scaling" same "scaling scaled" "scaling scaled.gguf.back"
check "... which is not the standard" matches <(scaling scaled.gguf.back) '"rope_original": 8192'
# ... and scaled by YaRN they are keys, for the ramp of the paper.
run 1 train scaled.json run.dir=yarn model.rope_scaling=yarn
there_and_back "angles of YaRN for llama.cpp" yarn gguf yarn.gguf 2
check "... with their scaling" same "scaling yarn" "scaling yarn.gguf.back"
check "... which is YaRN" matches <(scaling yarn.gguf.back) '"rope_scaling": "yarn"'
run 1 train scaled.json run.dir=uneven model.rope_scaling=yarn model.rope_truncate=false
run 1 export uneven --format gguf --out no
expect "llama.cpp has one ramp" 2 "rope_truncate" "export --format hf supports"
run 3 export smollm3.32 --format gguf --type bf16 --out smollm3.gguf
expect "in bf16 for llama.cpp" 0 "type=bf16"
run 1 import smollm3.gguf --out smollm3.bf16
expect "... and imported" 0
run 1 export smollm3.bf16 --format gguf --type bf16 --out again.gguf --name smollm3.32
check "... and exported: the same bytes" cmp smollm3.gguf again.gguf
run 1 export gpt2.32 --format gguf --type q8_0 --out q.gguf
expect "rows that are no whole blocks of Q8_0 stay float" 0 "type=q8_0"
# Rows of 256 and more in four bits, of which another number of ranks writes the same bytes.
run 1 train scaled.json run.dir=wide model.n_embd=256 model.ffn_width=512
run 1 export wide --format gguf --type q4_k --out wide.gguf
expect "four bits for llama.cpp" 0 "type=q4_k"
run 3 export wide --format gguf --type q4_k --out wide.3.gguf --name wide
check "... the same bytes on three ranks" cmp wide.gguf wide.3.gguf
run 2 import wide.gguf --out wide.4
expect "... and imported" 0 "step_00000000"
run 1 export wide.4 --format gguf --type q8_0 --out wide.8.gguf
expect "... and exported in eight" 0 "type=q8_0"
run 1 export gpt2.32 --format hf --type q4_k --out no
expect "Q4_K is a type of llama.cpp" 2 "--type q4_k is not supported by --format hf"
run 1 export llama.run --format nanogpt --out no
expect "Llama is no nanoGPT" 2 "nanoGPT does not support this model" "model.norm is not layernorm"
run 1 export gpt2.32 --format hf --type q8_0 --out no
expect "Q8_0 is a type of llama.cpp" 2 "--type q8_0 is not supported by --format hf"
run 2 export gpt2.32 --format hf --out gpt2.hf
expect "what is there is not overwritten" 2 "'gpt2.hf' exists already"

# A model of our own without biases: formats that need biases get zeros, and nothing is added for
# nanoGPT.
train 1 own model.activation=gelu train.max_steps=2 optimizer.decay_steps=20 model.position=learned model.bias=false
expect "a model of our own" 0
there_and_back "ours for nanoGPT" own nanogpt own.nano 2
run 1 export own --format nanogpt --out own_again.nano
expect "... with the lines that load it" 0 'load_file("own_again.nano/model.safetensors"), strict=False)' 'own_again.nano/model_args.json'
check "... from files that exist" test -s own_again.nano/model.safetensors -a -s own_again.nano/model_args.json
run 2 export own --format nanogpt --out ckpt.pt
expect "a file's name for a folder" 2 "writes a folder, and 'ckpt.pt' is the name of a file" "name a folder: --out ckpt"
run 1 export own --format hf --out own.hf
expect "ours for transformers" 0 "were written as zeros"
run 1 export own --format gguf --out own.gguf
expect "llama.cpp has one activation" 2 "gelu_tanh"

# An imported run trains in other layouts, and the first loss is the same.
head -c 4000 /dev/zero | tr '\0' '\7' | sed 's/\x07\x07\x07\x07/\x03\x00\x11\x00/g' >tokens.bin
tune() {  # tune RANKS NAME [ARGUMENT...]
  local ranks=$1 name=$2
  shift 2
  run "$ranks" train llama.run/deck.json run.dir="$name" checkpoint.init_from=llama.run 'data.train=["tokens.bin"]' \
    train.max_steps=2 train.micro_batch_size=1 train.grad_accum=0 train.global_batch_size=4 device=cpu "$@"
}
tune 1 tune.1
expect "fine-tuning begins with the weights" 0 "warm start from llama.run"
tune 4 tune.4 parallel.tensor=2 parallel.pipeline=2
expect "... on four ranks" 0 "warm start from llama.run"
check "... with the same losses" close_losses tune.1 tune.4 1e-5
run 2 train llama.run/deck.json 'data.train=["tokens.bin"]' train.max_steps=1 device=cpu
expect "the run itself goes on" 0 "resumed from llama.run"

# One step on the sequence of the sheet: its loss and the norm of its gradient, in every kind of
# layout.
# shellcheck disable=SC2086
perl -e 'print pack "v*", @ARGV' ${prompt//,/ } 7 >golden.bin
golden() {  # golden RANKS NAME MICRO_BATCHES [ARGUMENT...]
  local ranks=$1 name=$2 batch=$3
  shift 3
  run "$ranks" train smollm3.32/deck.json run.dir="$name" checkpoint.init_from=smollm3.32 'data.train=["golden.bin"]' \
    model.block_size=10 train.grad_accum=0 train.global_batch_size="$batch" train.max_steps=1 log.interval=1 device=cpu "$@"
  check "the sheet's loss and gradient, $ranks ranks $*" awk -F'[:,]' '
    function near(v, w) { d = v - w; return d < 1e-6 && d > -1e-6 }
    /"grad_norm"/ { for (i = 1; i < NF; i++) { if ($i == "\"loss\"") l = $(i + 1); if ($i == "\"grad_norm\"") g = $(i + 1) } }
    END { print l, g; exit !(near(l, 3.7309165338) && near(g, 1.7546691443)) }' "$name/metrics.jsonl"
}
golden 1 golden.1 1
golden 2 golden.2 2 parallel.zero=3
golden 4 golden.4 1 parallel.tensor=2 parallel.pipeline=2

# Wrong files are refused, and the message names the fault.
refused() {  # refused NAME CODE MODEL SED WORDS...: with a changed config.json of the model
  local name=$1 code_wanted=$2 model=$3 change=$4
  shift 4
  rm -rf changed
  cp -r "$model" changed
  sed -i "$change" changed/config.json
  run "${refused_on:-1}" import changed --out never
  expect "$name" "$code_wanted" "$@"
  check "... and nothing is made" absent never
}
refused "angles scaled in another way" 2 llama 's/"rope_scaling": null/"rope_scaling": {"rope_type": "longrope", "factor": 8.0}/' \
  'rope_scaling.rope_type = "longrope"'
refused_on=2 refused "another head width than the file's" 6 llama 's/"head_dim": 4/"head_dim": 8/' "self_attn.q_proj.weight is [16, 16], the model has [32, 16]"
refused "biases in a part of the layers" 2 llama 's/"attention_bias": false/"attention_bias": true/' "attention_bias = true"
refused "a family that is not known" 2 llama 's/"llama"/"mixtral"/' 'model_type = "mixtral"'
refused "a key that is not known" 2 llama 's/"vocab_size"/"logit_scale": 2, "vocab_size"/' "logit_scale = 2"
refused "a window in some layers alone" 2 smollm3 's/"sliding_window": null/"sliding_window": 16, "use_sliding_window": true/' \
  "use_sliding_window = true"
refused "a number that is none" 2 llama 's/"hidden_size": 16/"hidden_size": "wide"/' 'hidden_size = "wide"'
refused "another vocabulary than the file's" 6 llama 's/"vocab_size": 24/"vocab_size": 25/' "of another shape" \
  "model.embed_tokens.weight is [24, 16], the model has [25, 16]"
refused_on=2 refused "a layer too few" 6 llama 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' "unused: model.layers.1." "--allow-unused"
refused "a layer too many" 6 llama 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' "missing: model.layers.2." "--allow-missing"
refused "a head that is said to be tied and is not" 6 llama 's/embeddings": false/embeddings": true/' "differs from the token embedding"
run 2 import changed --out never nonsense.key=1
expect "a key of the deck that is none" 2 "nonsense"
sed -i 's/embeddings": true/embeddings": false/; s/"num_hidden_layers": 2/"num_hidden_layers": 3/' changed/config.json
run 2 import changed --out larger --allow-missing
expect "what is missing begins anew when told" 0 "initialised: model.layers.2."
expect "... and is counted" 0 "1952 of 6640 parameters have initial values"
all_flags=(--allow-missing --allow-unused)
# not_finite NAME RANKS FILE BYTES WORDS...: the number that begins this many bytes before the end
# of the file is NaN.
not_finite() {
  local name=$1 ranks=$2 path=$3 bytes=$4
  shift 4
  perl -e 'open my $f, "+<:raw", $ARGV[0] or die; seek $f, -$ARGV[1], 2; print $f pack "V", 0x7fc00000' "$path" "$bytes"
  [ "${path%/model.safetensors}" = "$path" ] || path=${path%/*}
  rm -rf never
  run "$ranks" import "$path" --out never "${all_flags[@]}"
  expect "$name with a NaN, whatever is allowed" 3 "NaN or infinite" "$@"
  check "... and nothing is made" absent never
}
for model in llama gpt2; do cp -r $model $model.nan; done
not_finite "Llama" 2 llama.nan/model.safetensors 4 "model.norm.weight: 1 of 16 elements, the first is element 15"
not_finite "GPT-2" 1 gpt2.nan/model.safetensors 4 "1 of "
cp gpt2.gguf nan.gguf
not_finite "GGUF" 1 nan.gguf 4 "1 of "
cp gpt2.bin nan.bin
not_finite "llm.c" 1 nan.bin 4 "1 of "
cp -r own.nano nan.nano
# The embedding is the last tensor of the file, and the head that repeats it the first.
not_finite "nanoGPT" 2 nan.nano/model.safetensors $(($(file_bytes nan.nano/model.safetensors) / 8 * 4)) "1 of "
# The model has none of the names: no flag permits such a run, which would have random weights.
matches_nothing() {  # matches_nothing NAME FOLDER SED: changes names of the weights
  local folder=$2.renamed
  cp -r "$2" "$folder"
  sed -i "$3" "$folder/model.safetensors"
  run 1 import "$folder" --out never
  expect "$1 of which no name is known" 3 "has no tensor that the described model has" "its names were changed"
  check "... no flag is recommended" lacks out "--allow"
  rm -rf never
  run 2 import "$folder" --out never "${all_flags[@]}"
  expect "... whatever is allowed" 3 "has no tensor that the described model has"
  check "... and nothing is made" absent never
}
matches_nothing "Llama" llama 's/"model\./"nodel./g; s/"lm_head/"ln_head/'
matches_nothing "GPT-2" gpt2 's/"transformer\./"transforner./g'
matches_nothing "nanoGPT" own.nano 's/transformer\./transforner./g'
run 1 import llama --out gpt2.32
expect "a folder that is taken" 2 "'gpt2.32' is not empty"
run 1 import nowhere --out never
expect "a folder that is not there" 6 "nowhere"
run 1 generate llama.one --ids 3,24 --logits x.npy
expect "an id beyond the vocabulary" 2 "24 is no token of the model"
run 1 generate llama.one --ids 3,x --logits x.npy
expect "an id that is none" 2 "'x' is no number"
run 1 generate llama.one --ids 3,17,5 --tokens 2 --temperature 0
expect "ids go on without a tokenizer" 0 "3,17,5,"
run 1 import llama --out other --check-ids ids.npy --check-logits gpt2.64.npy
expect "logits of another model" 4 "differ by" "rounding explains"
