#!/usr/bin/env bash
# 86 folders as transformers writes them, of the six families, with odd but legal settings: tied and
# untied, biases, head widths, scaled angles, windows, layers without positions, types of numbers,
# shards, keys of versions 4 and 5. Each is imported, its logits are compared with those of a numpy
# program in fp64 (test/run/lib/transformers_folders.py), it is exported, imported and compared
# again; or it is refused by the name of the key. Needs numpy: PYTHON=... names a Python with it.
. "$(dirname "$0")/../lib/common.sh"
python=${PYTHON:-python3}
if ! "$python" -c 'import numpy' 2>/dev/null; then
  skip "folders of transformers" "$python has no numpy (Debian: python3-numpy)"
  exit 0
fi
"$python" "$root/test/run/lib/transformers_folders.py" models >names || exit 1
# Settings that no run has, with the key that the refusal must name.
declare -A refused=([llama.attention_bias]="attention_bias = true" [qwen3.attention_bias]="attention_bias = true"
  [smollm3.attention_bias]="attention_bias = true" [llama.gelu]="hidden_act = \"gelu\""
  [smollm3.layer_types]="layer_types = ")
# In fp64 sums differ only by the order of their terms.
agree() { echo train.precision=fp64 --check-ids models/ids.npy --check-logits "models/$1.npy" --tolerance 1e-9; }
while read -r name _; do
  # shellcheck disable=SC2046
  run 1 import "models/$name" --out "$name" $(agree "$name")
  if [ -n "${refused[$name]:-}" ]; then
    expect "$name is refused by name" 2 "${refused[$name]}"
    continue
  fi
  expect "$name: logits" 0 "check: logits agree to"
  run 1 export "$name" --format hf --out "$name.hf"
  # shellcheck disable=SC2046
  run 1 import "$name.hf" --out "$name.again" $(agree "$name")
  expect "$name: logits of the export" 0 "check: logits agree to"
  rm -rf "$name" "$name.hf" "$name.again"
done <names
check "all folders were tried" test "$(wc -l <names)" = 86
# shellcheck disable=SC2046
run 1 import models/llama.F32 --out other $(agree llama.theta)
expect "other settings give other logits" 4 "differ by"
