#!/usr/bin/env bash
# Exports of every family of dense models as others read them: transformers and llama.cpp compute the
# same from the folder and from the GGUF, and PEFT from adapters. Tokenizers of three kinds (SentencePiece
# with byte fallback, Gemma's tokenizer.json, GPT-NeoX's) give 10,000 random strings the ids that their
# own programs give. Imports of 97 models of transformers with odd but legal settings have its logits,
# and so have their exports, or the settings are refused by name.
# PYTHON=... names a Python with transformers and torch, peft, xllamacpp, tokenizers and sentencepiece;
# what is missing is skipped.
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/dense_models.sh"
limit=600
python=${PYTHON:-python3}
oracle=$root/test/run/lib/foreign_oracle.py
has() {  # has NAME MODULES: succeeds if PYTHON has the modules
  "$python" -c "import $2" >import.log 2>&1 && return 0
  skip "$1" "PYTHON=... has no $2"
  return 1
}

if has "ids of tokenizers" "numpy, tokenizers, sentencepiece"; then
  "$python" "$root/test/run/lib/tokenizer_oracle.py" make tokenizers 10000 || exit 1
  for file in sentencepiece.model gemma.json neox.json; do
    kind=${file%.*}
    mkdir "of_$kind"
    cp "tokenizers/$file" "of_$kind/tokenizer.${file##*.}"
    run 2 prepare text tokenizers/texts.jsonl --out "data_$kind" --tokenizer "of_$kind/tokenizer.${file##*.}" --train-fraction 1
    expect "$kind: 10,000 random strings" 0
    check "... have the ids of its own program" "$python" "$root/test/run/lib/tokenizer_oracle.py" compare \
      "tokenizers/$kind.npy" "data_$kind/train_00000.tok"
  done
fi

# A tokenizer of 64 entries, as both programs need one; the ids of the prompt have no merge.
letters() {
  perl -e 'my @letters = map { chr } grep { $_ != 34 && $_ != 92 } 33 .. 126;
    @letters[1, 4, 63] = ("\\u010a", "\\u0120", $letters[9] . $letters[10]);  # a newline, a blank, a merge
    my $vocab = join ", ", map { "\"$letters[$_]\": $_" } 0 .. 63;
    my $bytes = q("type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true);
    print qq({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
      "pre_tokenizer": {$bytes}, "post_processor": null, "decoder": {$bytes}, "model": {"type": "BPE", "dropout": null,
      "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
      "byte_fallback": false, "ignore_merges": false, "vocab": {$vocab}, "merges": ["$letters[9] $letters[10]"]}}\n);' >"$1/tokenizer.json"
  echo '{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}' >"$1/tokenizer_config.json"
}
for model in $dense_models; do
  dense_model "$model"
  letters "$model"
  run 1 import "$model" --out "$model.run" train.precision=fp32
  expect "$model" 0 "largest_share="
  run 1 generate "$model.run" --ids $ids --logits "$model.npy"
  run 1 export "$model.run" --format hf --out "$model.hf"
  expect "... for transformers" 0 "format=hf"
  if has "$model as transformers reads it" "transformers, torch, numpy"; then
    check "... which computes the same" "$python" "$oracle" transformers "$model.hf" "$model.npy" $ids 1e-4
  fi
  run 1 export "$model.run" --format gguf --out "$model.gguf" --name tiny  # llama.cpp expects tokens by some names
  expect "... for llama.cpp" 0 "format=gguf"
  # The GELU of llama.cpp is a table of 16-bit floats.
  most=1e-4
  case $model in gemma* | gpt_neox) most=5e-3 ;; esac
  if has "$model as llama.cpp reads it" "xllamacpp, numpy"; then
    check "... which computes the same" "$python" "$oracle" llama "$model.gguf" "$model.npy" $ids $most
  fi
done

# Adapters of q and v, and of up, are one module each of these families; PEFT has them apart and merged.
head -c 4000 /dev/zero | tr '\0' '\7' | sed 's/\x07\x07\x07\x07/\x03\x00\x11\x00/g' >tokens.bin
for model in gpt_neox phi3; do
  for more in 'model.lora.targets=["q","v","up","down"]' model.lora.rank_stabilised=true; do
    rm -rf lora lora.peft lora.merged
    run 1 train $model.run/deck.json run.dir=lora checkpoint.init_from=$model.run 'data.train=["tokens.bin"]' model.lora.rank=2 "$more" \
      train.max_steps=2 train.grad_accum=0 train.global_batch_size=2 device=cpu optimizer.learning_rate=1e-2
    expect "adapters on $model, $more" 0 "warm start from"
    run 1 generate lora --ids $ids --logits lora.npy
    run 1 export lora --format peft --out lora.peft
    run 1 export lora --format hf --merge --out lora.merged
    if has "$model with adapters as PEFT reads it" "peft, transformers, torch, numpy"; then
      check "... and PEFT computes the same, apart and merged" "$python" "$oracle" peft $model.hf lora.peft lora.merged lora.npy $ids 1e-4
    fi
  done
done

# Odd but legal settings. transformers computes norms, softmax and angles in f32 also for models in f64.
declare -A refused=([gemma.5]="attention_bias = true" [gemma.10]="only linear, llama3 and yarn scaling" [gemma2.12]="layer_types = "
  [gemma2.15]="attention_bias = true" [gemma2.17]='hidden_activation = "gelu"' [gemma2.18]="use_bidirectional_attention = true"
  [gemma3_text.12]="scaling of the angles of local layers" [granite.1]="attention_bias = true" [granite.2]="mlp_bias = true"
  [granite.8]='hidden_act = "gelu"' [olmo2.3]="attention_bias = true" [gpt_neox.4]="attention_bias = false"
  [phi3.11]='hidden_act = "gelu"' [phi3.12]="attention_bias = true")
if has "odd settings" "transformers, torch, numpy, safetensors"; then
  "$python" "$root/test/run/lib/dense_folders.py" odd >names 2>odd.log || { cat odd.log; exit 1; }
  while read -r name; do
    agree=(train.precision=fp64 --check-ids odd/ids.npy --check-logits "odd/$name.npy" --tolerance 1e-5)
    run 1 import "odd/$name" --out "$name" "${agree[@]}"
    if [ -n "${refused[$name]:-}" ]; then expect "$name is refused by name" 2 "${refused[$name]}"; continue; fi
    expect "$name: logits" 0 "check: logits agree to"
    run 1 export "$name" --format hf --out "$name.hf"
    run 1 import "$name.hf" --out "$name.again" "${agree[@]}"
    expect "$name: logits of the export" 0 "check: logits agree to"
    # llama.cpp has fewer of these settings; its file is refused, or has the same logits.
    run 1 export "$name" --format gguf --out "$name.gguf"
    if [ "$code" = 0 ]; then
      run 1 import "$name.gguf" --out "$name.g" "${agree[@]}"
      expect "$name: logits of llama.cpp's file" 0 "check: logits agree to"
    else expect "$name is refused for llama.cpp" 2 "export --format hf supports"
    fi
    rm -rf "$name" "$name".*
  done <names
  check "all folders were tried" test "$(wc -l <names)" = 97
fi
