# shellcheck shell=bash
# Sourced after common.sh: a small corpus of spoken digits and recognisers of it.

digits_corpus() {  # digits/, packed as train/ and val/, with labels of characters
  run 1 prepare corpus spoken-digits --out digits --hours 0.03
  expect "spoken digits" 0
  for part in train val; do run 1 prepare audio "digits/$part.json" --out "$part"; done
  expect "packed" 0
  run 1 prepare tokenizer train --out char --type char
  run 1 prepare tokens train val --tokenizer char.json --name char
  expect "written in characters" 0 "labels.char.bin"
}

# digits_recogniser NAME KEYS: trains one in run/ for a few seconds until it recognises digits;
# KEYS: more lines of its model.
digits_recogniser() {
  digits_corpus
  cat >digits.json <<END
{
  "model": {
    "type": "fastconformer", "n_embd": 64, "n_head": 2, "subsampling": 4, "subsampling_channels": 16,
    "mels": 40, "dropout": 0, "freq_masks": 0, "time_masks": 0, $2
  },
  "data": { "train": ["train"], "val": ["val"], "batch_duration": 12, "buckets": 4, "window": 64 },
  "train": { "micro_batches": 1, "max_steps": 150 },
  "optimizer": { "learning_rate": 5e-3, "warmup_steps": 10, "beta2": 0.98 },
  "eval": { "interval": 0 }, "checkpoint": { "interval": 0 }, "log": { "interval": 50 }
}
END
  run 1 train digits.json run.dir=run checkpoint.interval=150
  expect "$1" 0 "step=150" "checkpoint"
}
