#!/usr/bin/env bash
# Words that a new user types: options of other programs, names of the hub, files that are not there. And the commands that this
# program tells a user to type: the examples of its help texts and of README.md.
. "$(dirname "$0")/lib/common.sh"

train 1 model train.max_steps=1 eval.interval=0 checkpoint.interval=1
expect "a model" 0 "summary:"

# Options of other programs, other spellings, misspellings, and a prompt without its option.
missing() {  # missing NAME CODE WORDS ARGUMENT...
  local name=$1 wanted=$2 words=$3
  shift 3
  run 0 "$@"
  expect "$name" "$wanted" "-> $words"
}
asked() {  # asked NAME WORDS ARGUMENT...: exit code 2, and a hint with these words
  local name=$1 words=$2
  shift 2
  run 0 "$@"
  expect "$name" 2 "-> $words"
}
asked "nanoGPT's --start" "--start of nanoGPT is --prompt here: --prompt ROMEO:" generate model --start=ROMEO:
asked "nanoGPT's --num_samples" "--num_samples of nanoGPT is --samples here" generate model --num_samples 3
asked "--max_new_tokens" "--max_new_tokens of nanoGPT is --tokens here: --tokens 3" generate model --max_new_tokens=3
asked "--do_sample" "--do_sample of Hugging Face: --temperature 0 takes" generate model --do_sample
run_broken near-name-lost 0 generate model --temprature 1
check "a program that knows no near name is noticed" lacks out "did you mean"
asked "--top_k" "did you mean --top-k?" generate model --top_k 3
asked "--temprature" "did you mean --temperature?" generate model --temprature 1
asked "a prompt without its option" "a prompt follows --prompt: --prompt 'hello you'" generate model "hello you"
asked "a key for generate" "\`choir generate\` takes no keys of the deck" generate model model.n_layer=3
asked "nanoGPT's --max_iters" "deck keys follow the deck without dashes: train.max_steps=3" train "$debug" --max_iters=3
asked "an option of NeMo" "--output_filename of NeMo is --out here: --out x" transcribe model --output_filename=x
asked "an option before the kind of bench" "the kind comes first" bench --baseline nosuch
asked "several options at once" "--start of nanoGPT is --prompt here: --prompt" generate model --start "And God" --max_new_tokens=3
check "... with the whole command" has out "the whole command: $choir generate model --prompt 'And God' --tokens 3"
asked "keys as options" "deck keys follow the deck without dashes: train.max_steps=3" train "$debug" --max_iters=3 --learning_rate 1e-3
check "... with the whole command" has out "train.max_steps=3 optimizer.learning_rate=1e-3"
asked "--device of train" "deck keys follow the deck without dashes: device=cpu" train "$debug" --device cpu
asked "--config of train" "--config of many programs: the deck is the first argument" train --config "$debug"
asked "--resume of train" "resume: the same command continues a run" train "$debug" --resume
asked "--out_dir of generate" "--out_dir of nanoGPT: the run or checkpoint is the first argument" generate --out_dir=model
asked "--n of generate" "--n of OpenAI is --samples here" generate model --prompt And --n 5
touch sound.wav
asked "a sound file in the place of --out" "the result is named by --out: $choir speak model sound.wav --out sound_out.wav" speak model sound.wav
asked "an export without --out" "the result is named by --out: $choir import model --out other" import model other
asked "a subcommand of nanoGPT" "text is sampled by \`choir generate RUN --prompt TEXT\`" sample
asked "the beginning of a subcommand" "did you mean 'generate'?" gen
asked "generate without a run" "a run or a checkpoint follows: $choir generate runs/quickstart" generate
asked "verify without a deck" "a deck follows: $choir verify inputs/debug.json" verify
asked "a file without its kind" "the kind of data comes first: \`choir prepare text text.txt --out FOLDER\`" prepare text.txt
asked "bpe without its size" "add --vocab-size, for example --vocab-size 8192" prepare text text.txt --tokenizer bpe --out bpe
run 0 generate model --tokens 3 --tokens 4
expect "an option twice" 2 "choir generate: --tokens is given 2 times" "give it once"
run 0 generate model --tokens
expect "an option without its value" 2 "choir generate: --tokens needs a value behind it"
head -c 3 text.txt >prompt.txt
run 0 generate model --prompt "$(cat prompt.txt)" --tokens 3 --seed 5
expect "a prompt of three characters" 0 "$(cat prompt.txt)"
cp stdout from_word
echo | cat prompt.txt - | "$choir" generate model --prompt - --tokens 3 --seed 5 >from_pipe 2>&1
check "a prompt from the standard input" cmp from_word from_pipe
missing "the standard input as a text" 3 "'-' is not the standard input here: save what it carries in a file" prepare text - --out x
missing "a step that is not there" 6 "that step was not saved, or checkpoint.keep removed it since; 'model/checkpoints' has step_00000001" generate model/checkpoints/step_00000009
run 0 train --describe n_embd nonsense.key n_head
expect "--describe of several keys, one of them unknown" 2 "model.n_embd" "model.n_head" "nonsense.key"
run 0 train "$debug" warmup=10
expect "a part of a key's name" 2 "did you mean 'optimizer.warmup_steps'?"
run 0 train "$debug" n_layer=6
expect "a key without its section, which parts of other families also have" 2 "the key is 'model.n_layer'"
check "... and no other is named" lacks out "encoder"
run 0 train "$debug" train.frozen_precision=nf4 model.lora.rank=4
expect "a base that is missing" 2 "checkpoint.init_from names none" "for example checkpoint.init_from=runs/base"
run 3 train "$debug" train.unfreeze='["a"]'
expect "a deck error of all ranks" 2 "choir: command line: train.unfreeze" "\`choir train --describe train.unfreeze train.freeze\` explains them"
check "... names no rank" lacks out "ranks failed"
run 0 export model --format huggingface --out x
expect "another name of a format" 2 "did you mean 'hf'?"
run 0 help train
expect "help train" 0 "key.path=value" "--describe"
run 0 train --describe n_embd
expect "--describe of one key" 0 "model.n_embd"
check "... and of no other" lacks out "train.max_steps"
run 0 train --describe learning rate
expect "--describe of a key in two words" 0 "optimizer.learning_rate"
check "... and of no other key" eval '! grep -qE "^  (optimizer.warmup|train[.])" stdout'
run 0 train --describe clip
expect "--describe of a word in a name" 0 "with 'clip' in the name or text:" "optimizer.grad_clip"
run 0 train --describe low-rank
check "... whose sentences end before a capital" matches stdout 'model.lora.rank .*Hu et al\. [0-9]'
run 0 train --describe lr
expect "... of a name of other programs" 0 "'lr' of other programs is here:" "  optimizer.learning_rate"
run 0 train --describe Gradients norm
expect "--describe of two words of a text" 0 "optimizer.grad_clip" "prints the whole text of a key"
check "... on one screen" eval '[ "$(wc -l <stdout)" -le 24 ]'
run 0 train --describe n_embdd
expect "--describe of a misspelt key" 2 "did you mean 'n_embd'?"
asked "a misspelt kind of bench" "did you mean 'step'?" bench stpe
# Sizes and options of nccl-tests.
run 2 bench collectives -b 4K -e 16KiB -f 4 -g 1 -n 2
expect "sizes with units, and the options of nccl-tests" 0 "4.0 KiB" "16.0 KiB"
run 0 bench collectives -b 8 -e 128M
expect "a size below the smallest" 2 "--min-bytes: 8 is out of range; legal: 1K to 1G"
run 0 bench collectives --min-bytes 8Q
expect "a unit that does not exist" 2 "'8Q' is no size; legal: 1048576, 1M, 1MiB"
run 0 bench collectives --min-bytes 8M --max-bytes 1M
expect "sizes in the wrong order" 2 "--min-bytes 8388608 is above --max-bytes 1048576"
run 0 bench collectives -g 4
expect "several GPUs a rank" 2 "a rank has one GPU here" "jobs/launch -n 4"
run 2 bench collectives --max 1M
expect "the beginning of an option" 2 "not an argument of this command: --max" "did you mean --max-bytes?"
run 2 bench collectives -b 4K -e 4K -n 1
expect "the answer below the tables" 0 "RESULT: bus bandwidth with the largest buffers of each table" "# avg bus bandwidth: "
asked "--sizes" "--sizes of other programs: --min-bytes and --max-bytes" bench collectives --sizes 8M
# The hint on the list of keys stands only where nothing better is known.
run 0 train "$debug" nothing.like=3
expect "a key that is like no other" 2 "\`choir train --describe\` lists every key"
for wrong in train.max_steps=-3 model.n_head=3 train.micro_batchsize=4; do
  run 0 train "$debug" $wrong
  check "$wrong: legal values or the name, and no list of all keys (exit code $code)" eval '[ $code = 2 ] && lacks out "--describe"'
done
run 0 train "$debug" eval.every=2
expect "a key of another program in a section" 2 "what many programs call 'eval.every' is 'eval.interval' here"
run 0 train "$debug" data.every=2
expect "a part of a name in its section" 2 "did you mean 'data.readers_every'?"
run 0 train "$debug" log.style=json
expect "JSON lines as a style" 2 "JSON lines are always in RUN/metrics.jsonl"
run 0 verify "$root/inputs/verify_gpt.json" --layouts preload=1
expect "a wrong value of a layout" 2 "legal: preload=none, preload=host, preload=device;"
run 0 verify "$root/inputs/verify_gpt.json" --layouts prelod=host
expect "a wrong word of a layout" 2 "did you mean 'preload='?"
run 0 train "$debug" tp=2
expect "an axis by its short name" 2 "what the short form of a layout calls 'tp' is 'parallel.tensor' here"
run 0 export model --format hf
expect "an option that is missing, as a whole command" 2 "export: --out is required" "for example: $choir export model --format hf --out FOLDER;"
run 0 generate --prompt hi
expect "a run that is missing" 2 "checkpoint is required" "for example: $choir generate runs/quickstart --prompt hi;"
for name in alone mine; do mkdir -p runs/$name && : >runs/$name/deck.json; done
mkdir -p runs/{older,mine}/checkpoints/step_00000001 && : >runs/older/deck.json
touch -d "2 hours ago" runs/older/checkpoints
run 0 generate --prompt hi
expect "... the one that has saved last" 2 "for example: $choir generate runs/mine --prompt hi;"
rm -r runs/alone runs/older runs/mine
run 0 report model --format csv
expect "a format that every run has" 2 "csv: metrics.jsonl in the run directory has the numbers"
run 0 report model --format tb
expect "TensorBoard by its abbreviation" 2 "tb: --format tensorboard writes the files of TensorBoard"
mkdir packed
printf '\1\0\2\0%.0s' {1..2000} | tee packed/train.bin >packed/val.bin
run 0 train "$debug" 'data.train=["packed/train.bin"]' model.vocab_size=64 train.max_steps=1 run.dir=unevaluated
expect "no validation data" 0 "there are no validation data, so nothing is evaluated" "data.val='[\"packed/val.bin\"]'" ", no evaluation"
run 0 bench ops --baseline nosuch
expect "a baseline that is not there" 2 "--baseline: there is no file 'nosuch'"
run 0 generate model --start=ROMEO: --seed 3 more
expect "the words are in their order" 2 "not an argument of this command: --start=ROMEO: more"

asked "a misspelt kind of preparation" "did you mean \`choir prepare manifest\`?" prepare manifests clips
asked "an option for manifests" "--manifest of NeMo: manifests are values of the deck: 'data.val=" eval model --manifest x.json
asked "a manifest as an argument" "to evaluate on other data: 'data.val=[\"x.json\"]'" eval model x.json
asked "a second clip" "several clips of a question are joined by commas: --audio a.wav,b.wav" generate model --audio a.wav b.wav
run 0 train "$debug" model.decoding.strategy=beam model.optim.name=adamw
expect "keys of NeMo" 2 "use \`choir transcribe --beam N\`" "what NeMo calls 'model.optim.name' is 'optimizer.name' here"

# Files that are not there, and names of the hub.
cp "$debug" debug.json
missing "a misspelt deck" 2 "did you mean 'debug.json'?" train debgu.json
ln -s "$root/inputs" inputs
missing "a deck of the program by its name" 2 "did you mean 'inputs/gpt_quickstart.json'?" train gpt_quickstart
mkdir -p runs && cp -r model runs/quickstart
missing "a run in runs/" 6 "did you mean 'runs/quickstart'?" generate quickstart
missing "the beginning of a run's name" 6 "did you mean 'runs/quickstart'?" generate runs/quick
missing "a folder of runs" 6 "name one of its runs: runs/quickstart" generate runs
missing "... for inspect" 6 "name one of its runs: runs/quickstart" inspect runs
mkdir .make && touch .make/quickstart.sh
missing "a run of a tutorial that nobody made" 6 "\`make quickstart-speech\` makes runs/asr_tutorial" transcribe runs/asr_tutorial sound.wav
missing "... its checkpoints" 6 "\`make quickstart-duplex\` makes runs/duplex_tutorial" eval runs/duplex_tutorial/checkpoints
missing "... its data" 3 "\`make quickstart-speech\` makes data/spoken_book" train inputs/asr_tutorial.json
mv runs/quickstart kept
missing "... the run of the quickstart" 6 "\`make quickstart\` makes runs/quickstart" generate runs/quickstart
mv kept runs/quickstart
rm -r .make
missing "a preset of plan" 2 "did you mean 'llama3-8b'?" plan llama-3-8b
missing "a configuration of nanoGPT" 2 "the deck of that name is " train config/train_shakespeare_char.py
mkdir hf_model && echo '{}' >hf_model/config.json
missing "a model of another program" 6 "import it first: \`choir import hf_model" generate hf_model
printf '{"id": 1, "content": "ab"}\n' >other.jsonl
missing "rows without the field" 3 "name the field or the column of the text with --text-field (data.text_field in a deck); the first row has the fields content, id" prepare text other.jsonl --out rows
missing "a misspelt text" 3 "did you mean 'text.txt'?" train debug.json 'data.train=["txet.txt"]' run.dir=x
missing "a misspelt run" 6 "did you mean 'model'?" eval modle
missing "... of a report" 3 "did you mean 'model'?" report modle
missing "a text in a folder that is not there" 3 "there is no folder 'nowhere' in" train debug.json 'data.train=["nowhere/a.txt"]' run.dir=x
missing "a model of the hub" 6 "'gpt2' is a name of the Hugging Face hub, and choir downloads nothing" import gpt2 --out x
missing "... as a run" 6 "'HuggingFaceTB/SmolLM2-135M' is a name of the Hugging Face hub, and choir downloads nothing: \`hf download HuggingFaceTB/SmolLM2-135M --local-dir SmolLM2-135M\`" generate HuggingFaceTB/SmolLM2-135M
missing "a tokenizer of the hub" 2 "'gpt2' is a name of the Hugging Face hub" prepare text text.txt --tokenizer gpt2 --out x
missing "... with its owner" 3 "'meta-llama/Llama-3.2-1B' is a name of the Hugging Face hub" prepare text text.txt --tokenizer meta-llama/Llama-3.2-1B --out x
missing "a run as a tokenizer" 3 "'./model' is a run" prepare text text.txt --tokenizer ./model --out x
run 0 train debug.json data.tokenizer=gpt2
expect "a tokenizer of the hub in a deck" 2 "'gpt2' is a name of the Hugging Face hub"

# Speech: a sound file that is not there, and more pieces of words than a corpus of 20 lines allows.
if "$choir" --help | grep -q transcribe; then
  mkdir clips
  perl -e 'for my $i (0 .. 19) { open my $f, ">:raw", "clips/$i.wav"; my $n = 8000;
    print $f "RIFF" . pack("V", 36 + 2 * $n) . "WAVEfmt " . pack("VvvVVvv", 16, 1, 1, 16000, 32000, 2, 16) . "data" . pack("V", 2 * $n);
    print $f pack("s<*", map { int(3000 * sin($_ * (0.05 + 0.01 * $i))) } 1 .. $n) }'
  for i in $(seq 0 19); do echo "{\"audio_filepath\": \"clips/$i.wav\", \"duration\": 0.5, \"text\": \"ab ba $i\"}"; done >clips.json
  asr=("$root/inputs/asr_tutorial.json" 'data.validation={}' 'data.val=["clips.json"]' run.dir=asr train.max_steps=1)
  run 1 train "${asr[@]}" 'data.train=["clips.json"]'
  expect "too many pieces for 20 lines" 2 'data.labels = "bpe_256"' "data.labels=char" "is the largest vocabulary"
  sed '3s/clips.2/clips\/22/' clips.json >gone.json
  run 1 train "${asr[@]}" 'data.train=["gone.json"]' data.labels=char
  expect "a sound file that is not there" 3 "cannot open 'clips/22.wav'" "did you mean 'clips/" "data.on_bad=skip"
  # Options outside of quoted commands are those of the command that runs, whichever command finds the fault; and only a command
  # with a deck names keys of one.
  sed -i 's/ ba [0-9]*//' clips.json
  run 1 train "${asr[@]}" 'data.train=["clips.json"]' data.labels=char
  expect "a recogniser" 0 "summary:"
  echo nothing >clips/bad.wav
  perl -e 'print "RIFF" . pack("V", 32036) . "WAVEfmt " . pack("VvvVVvv", 16, 1, 2, 16000, 64000, 4, 16) . "data" . pack("V", 32000) . "\0" x 32000' >clips/two.wav
  own_words() {  # own_words COMMAND...: of its last refusal
    sed -n 's/^ *-> //p' out | sed 's/`[^`]*`//g' >hint
    for word in $(grep -oE -- '--[a-z][a-z-]*' hint); do "$choir" "$@" --help | grep -qe "$word" || return 1; done
    case $1 in train | eval) ;; *) lacks hint data. ;; esac
  }
  for fault in bad two; do
    { head -n 1 clips.json; echo "{\"audio_filepath\": \"clips/$fault.wav\", \"duration\": 0.5, \"text\": \"ab\"}"; } >fault.json
    echo "{\"conversations\": [{\"from\": \"User\", \"value\": \"clips/$fault.wav\", \"type\": \"audio\", \"duration\": 0.5}, {\"from\": \"Assistant\", \"value\": \"ab\", \"type\": \"text\"}]}" >fault.jsonl
    while read -r arguments; do
      rm -rf no
      # shellcheck disable=SC2086
      run 0 $arguments
      read -r first second _ <<<"$arguments"
      [ "$first" = prepare ] || second=
      # shellcheck disable=SC2086
      check "clips/$fault.wav is refused by \`choir $arguments\` with its own words (exit code $code)" eval '[ $code = 3 ] && matches out "clips/$fault.wav. (has|cannot)" && grep -q "^ *-> ." out && own_words $first $second'
    done <<END
transcribe asr clips/1.wav clips/$fault.wav
transcribe asr --manifest fault.json --out no.json
prepare audio fault.json --out no
prepare chat fault.jsonl --tokenizer byte --out no
eval asr data.val=fault.json
train ${asr[0]} data.train=fault.json data.val=clips.json data.validation={} run.dir=no data.labels=char
END
  done
fi

# Examples. A command that README.md names is right if it is not refused as misused (exit code 2): what it names may be missing
# here, and a second is enough to refuse it.
tasks=$(sed -n '/^## Tasks/,/^## /p' "$root/README.md" | grep -oE '`[^`]*build/choir [^`]*`' | tr -d '`' | sed 's/.*build\/choir //' | grep -vxF ...)
check "README.md has tasks" test "$(wc -l <<<"$tasks")" -ge 39
# Refusals of the words themselves; a run that lacks checkpoints, or a machine that lacks a GPU, is another matter.
misused='not an argument of this command|unknown (key|subcommand|bench)|is not one of|command line:|is required|requires'
typed=0
while IFS= read -r task; do
  task=${task//DECK/$debug} task=${task//FILE.jsonl.../none.jsonl}
  code=0
  eval "timeout 1 '$choir' $task" >out 2>&1 </dev/null || code=$?
  command="choir $task"
  if [ "$code" = 2 ] && matches out "$misused"; then fail "README.md: choir $task" "exit code 2"; show_output; else typed=$((typed + 1)); fi
done <<<"$tasks"
check "every task of README.md can be typed" test "$typed" = "$(wc -l <<<"$tasks")"

# Help texts: commands in backticks exist with their options, keys are accepted, and decks exist.
kinds=$("$choir" bench --help | sed -nE 's/^  ([a-z]+) .*/bench \1/p')
parts=$("$choir" prepare --help | sed -nE '/^Subcommands/,$s/^  ([a-z]+) .*/prepare \1/p')
subcommands=$("$choir" --help | sed -nE 's/^  ([a-z]+) .*/\1/p')
for of in $subcommands; do COLUMNS=10000 "$choir" "$of" --help; done >help.txt 2>&1
while read -r of; do
  # shellcheck disable=SC2086
  COLUMNS=10000 "$choir" $of --help
done <<<"$kinds
$parts" >>help.txt 2>&1
check "every subcommand has a help text" test "$(grep -c '^Usage' help.txt)" -gt 25
examples=0
while IFS= read -r example; do
  read -r -a words <<<"$example"
  of=${words[1]}
  case $of in prepare | bench) of="$of ${words[2]:-}" ;; esac
  # shellcheck disable=SC2086
  "$choir" $of --help >of.txt 2>&1 || fail "a help text names '$example'" "there is no such command"
  for word in "${words[@]}"; do
    case $word in --*) has of.txt "$word" || fail "a help text names '$example'" "there is no $word" ;; esac
  done
  examples=$((examples + 1))
done < <(grep -oE '`choir [^`]*`' help.txt | tr -d '`' | sort -u)
check "help texts name commands" test "$examples" -ge 5
while IFS= read -r key; do
  key=${key//\'/}
  rm -rf example
  run 0 train "$debug" "${small[@]}" run.dir=example train.max_steps=1 eval.interval=0 train.ema=0.9 "$key"
  check "a help text names $key" lacks out "command line:"
done < <(grep -v "key\.path" help.txt | grep -oE "\b[a-z]+(\.[a-z_]+)+=[^ ,)]+" | sort -u)
while IFS= read -r deck; do check "a help text names $deck" test -e "$deck"; done < <(grep -oE 'inputs/[a-z_]+\.json' help.txt | sort -u)
cp -r "$work/text.txt" x.txt
run 0 prepare text x.txt --out held --tokenizer char
cp held/train*.tok x.tok
run 0 eval model 'data.val=["x.tok"]'
expect "the example of \`choir eval --help\`" 0 "perplexity="

# Names of layouts in other programs, with the value to set.
while IFS='|' read -r key words; do
  run 0 train debug.json "$key" run.dir=x
  expect "$key" 2 "unknown key '${key%%=*}'" "$words"
done <<'END'
train.context=2|'train.context'; the length of a sequence is model.block_size
parallel.tp=2|'parallel.tensor'
parallel.pp=2|'parallel.pipeline'
parallel.dp=2|'parallel.data'
parallel.cp=2|'parallel.context'
parallel.mp=2|'parallel.tensor'
parallel.expert=2|models have no experts
parallel.fsdp=true|set parallel.zero to 3
parallel.zero_stage=1|'parallel.zero'
zero_optimization.stage=2|'parallel.zero'
zero_optimization.offload_optimizer.device=cpu|set parallel.offload to "optimizer" for cpu
offload_optimizer.device=cpu|set parallel.offload to "optimizer" for cpu
tiled_linear=true|train.attention_chunk attention
no_mmap_bin_files=true|data.preload (none, host or device)
enable_cpu_offload=true|parallel.offload_gradients to true
use_distributed_optimizer=true|set parallel.zero to 1
recompute_activations=true|set train.recompute to "selective"
activation_checkpointing=true|set train.recompute to "full"
num_layers_per_virtual_pipeline_stage=2|parallel.virtual_stages
tensorboard_dir=tb|set log.tensorboard to true
find_unused_parameters=true|not needed
lora_alpha=16|'model.lora.alpha'
audio_loss_weight=2|'model.loss.audio'
target_sample_rate=22050|not needed
dp_replicate_size=2|parallel.zero_group
packed_sequences=true|'data.pack'
ep_size=2|experts
ds_config_path=ds.json|choir train --describe
fp16=true|set train.precision to "fp16-mixed"
torch_dtype=bfloat16|fp64, fp32, bf16-mixed, bf16-true or fp16-mixed
END
run 0 train debug.json run.walltime=00:00:20 run.dir=x
expect "a walltime shorter than its margin" 2 "lower the margin: run.walltime_margin=5"
run 0 train --check debug.json 'data.train=["text.txt"]' run.walltime=1-00:00:00
expect "a walltime as SLURM writes it" 0 "run.walltime=86400"
run 0 train --check debug.json 'data.train=["text.txt"]' run.walltime=90m
expect "... and with a unit" 0 "run.walltime=5400" "memory: " "disk: a checkpoint has"
run 0 train --check debug.json 'data.train=["text.txt"]' parallel.zero=1 model.n_embd=16384 model.n_head=128
expect "a check of ranks that are not known says so" 0 "not compared with the" "choir train --check --ranks N"
# The ranks of a job are checked by one process: layout, batch, memory of a node.
checked=(train --check debug.json 'data.train=["text.txt"]')
run 0 "${checked[@]}" --ranks 4 --ranks-per-node 2 parallel.tensor=2
expect "a check for the ranks of a job" 0 "memory: " "for rank 0 of dp=2 tp=2" "deck OK"
run 0 "${checked[@]}" --ranks 3 parallel.tensor=2
expect "... which do not come out" 2 "3 ranks cannot be divided by parallel.tensor 2" "start a multiple of 2 ranks"
run 0 "${checked[@]}" --ranks 5
expect "... or do not divide the batch" 2 "is not a multiple of train.micro_batch_size = 2 x 5 data-parallel ranks"
run 0 "${checked[@]}" --ranks 1048576 train.global_batch_size=0 model.n_embd=8192 model.n_head=64
expect "... or have no memory on a node" 2 "out of memory: "
run 0 "${checked[@]}" --ranks 2 --gpus A100-80GB
expect "a check for a card that is not here" 0 "memory: " "for rank 0 of dp=2" "of 76.8 GiB that one A100 80 GB has for it"
run 0 "${checked[@]}" --ranks 32 --gpus A100-40GB train.global_batch_size=64
expect "... on as many nodes as choir plan assumes" 0 "ranks_per_node=8" "cp=1 on 4 nodes of 8 (assumed), of 38.2 GiB"
run 0 "${checked[@]}" --ranks 32 --gpus A100-40GB --ranks-per-node 32 train.global_batch_size=64
check "... or as it is told" lacks out "assumed"
run 0 "${checked[@]}" --ranks 4 --gpus P100
expect "... a card that is not in the table" 2 "for any other card, \`choir plan\` takes its memory"
run 0 "${checked[@]}" --ranks 4 --elsewhere --gpus A100-40GB train.global_batch_size=0 model.n_embd=16384 model.n_head=128
expect "... which is too small" 2 "out of memory: rank 0 of dp=4" "and one A100 40 GB has 38.2 GiB for it" "\`choir plan\` with the same deck"
run 0 "${checked[@]}" --gpus A100 device=cpu
expect "... which the deck does not use" 2 "--gpus A100: this deck computes on the processor" "leave out --gpus"
run 0 "${checked[@]}" --nodes 2 --target a100-80 train.global_batch_size=16 train.micro_batch_size=1
expect "... by the words of choir plan" 0 "for rank 0 of dp=16" "that one A100 80 GB has for it"
run 0 "${checked[@]}" --nodes 2
expect "... nodes of unknown size" 2 "--nodes 2 does not say how many ranks a node has" "--gpus-per-node N"
run 0 "${checked[@]}" --ranks-per-node 2
expect "... or ranks of unknown nodes" 2 "does not say how many ranks the job has" "--ranks N or --nodes N"
run 0 tune debug.json 'data.train=["text.txt"]' --nodes 1 --gpus a100-80gb --out tuned.json train.global_batch_size=32
expect "... and so does tune" 0 "tune for A100 80 GB, 8 ranks"
run 0 train debug.json --gpus A100
expect "a card without --check" 2 "--gpus belongs to --check"
run 0 train debug.json --ranks 2
expect "ranks without --check" 2 "--ranks belongs to --check" "jobs/launch -n N build/choir train DECK"
run 0 train --check llama3-8b
expect "a model in place of a deck" 2 "'llama3-8b' is a known model" "\`choir plan llama3-8b --out llama3-8b.json\` writes a deck"
run 0 train debug.json log.every=10
expect "another name of log.interval" 2 "log.interval"
run 0 train debug.json log.format=json
expect "a format of the log" 2 "JSON lines are always in RUN/metrics.jsonl"
run 0 bench step debug.json --ranks 5
expect "ranks of a bench" 2 "the launcher sets the ranks: jobs/launch -n RANKS build/choir ..."
cat >deepspeed.json <<'END'
{"gradient_accumulation_steps": 4, "fp16": {"enabled": false}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
 "scheduler": {"type": "WarmupDecayLR"}}
END
run 0 train deepspeed.json
expect "a file of DeepSpeed" 2 "what nanoGPT, like DeepSpeed and Hugging Face, calls 'gradient_accumulation_steps'" "if it is true or enabled, set" \
  "'optimizer.params'; a name of DeepSpeed: its keys are keys of optimizer here: learning_rate (lr)" "'scheduler'; a name of DeepSpeed"
cat >zero.json <<'END'
{"train_batch_size": 32, "bf16": {"enabled": true}, "fp16": {"enabled": false}, "gradient_clipping": 1.0,
 "zero_optimization": {"stage": 2, "overlap_comm": true, "offload_optimizer": {"device": "cpu", "pin_memory": true}},
 "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": "auto"}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 10}}}
END
run 0 train zero.json
expect "... is translated with its values" 2 "a configuration of DeepSpeed" " train.global_batch_size=32" " train.precision=bf16-mixed" \
  " optimizer.grad_clip=1.0" " parallel.zero=2" " parallel.offload=optimizer" " optimizer.name=adamw" " optimizer.learning_rate=0.0003" \
  " optimizer.beta1=0.9 optimizer.beta2=0.95" " optimizer.schedule=linear" " optimizer.warmup_steps=10"
check "... each key once" eval '! grep -qE "fp16-mixed|learning_rate=0.001|epsilon|pin_memory|overlap_comm" out'
run 0 train debug.json train.max_steps = 100
expect "blanks around =" 2 "blanks around the = of train.max_steps: write train.max_steps=100 without blanks"
check "... are one error" lacks out "is not of the form"
run 0 train debug.json train.max_steps= 100
expect "... behind it" 2 "blanks behind the = of train.max_steps: write train.max_steps=100 without blanks"
run 0 train debug.json train.max_steps 100
expect "... instead of it" 2 "there is no = behind train.max_steps: write train.max_steps=100"
check "... are one error, too" lacks out "is not of the form"
run 0 train -n 2 debug.json
expect "ranks as an option of the program" 2 "-n of mpiexec: the launcher sets the ranks: jobs/launch -n RANKS build/choir"
run 0 train debug.json run.dir=quotes 'data.train=[text.txt]'
expect "a list whose quotes the shell took" 3 "'data.train=[\"text.txt\"]'; or without brackets: data.train=text.txt"
OMP_NUM_THREADS=$(($(launch_cores) + 1)) run 0 train debug.json 'data.train=["text.txt"]' run.dir=crowded train.max_steps=1 checkpoint.interval=0
expect "more threads than cores" 0 "1 rank with $(($(launch_cores) + 1)) threads in all share" "steps are slow, and the result is the same" "for a rank fit (OMP_NUM_THREADS=$(launch_cores))"
if grep -qwE "amx_bf16|avx512_bf16" /proc/cpuinfo && grep -q CHOIR_HAVE_ONEDNN "$build/choir_features.hpp"; then
  run 0 train debug.json 'data.train=["text.txt"]' run.dir=faster train.max_steps=1 eval.interval=0
  expect "fp32 where bf16 is faster" 0 "this processor multiplies bf16 about" "times faster than fp32:" "train.precision=bf16-mixed"
  run 0 train debug.json 'data.train=["text.txt"]' run.dir=faster train.max_steps=2 eval.interval=0 train.precision=bf16-mixed
  expect "another precision on a resume" 0 "[W] changed since that checkpoint:" "train.precision"
  check "... which is told nothing of bf16" lacks out "this processor multiplies bf16"
else skip "fp32 where bf16 is faster" "this processor or this build does not multiply bf16 faster"; fi
run 0 generate --help
expect "the help has defaults" 0 "--top-k INT from 0, default 0" "--batch INT from 1 to 65536, default 8"
check "... and no lists of what excludes what" lacks out "Excludes"
for columns in 80 ''; do
  COLUMNS=$columns run 0 train --help
  check "help is at most ${columns:-100 (no terminal)} columns wide" test "$(wc -L <stdout)" -le "${columns:-100}" -a -s stdout
  check "... and keeps its indent" matches stdout '^ {30}[^ ]'
done
# The folder that a refused first start left tells its cause to all who name it.
run 0 train debug.json run.dir=runs/refused 'data.train=["text.txt"]' model.vocab_size=2
expect "a first start that is refused" 3 "model.vocab_size is 2"
for name in "generate runs/refused --prompt a" "eval runs/refused"; do
  # shellcheck disable=SC2086
  run 0 $name
  expect "$name" 6 "no checkpoint in runs/refused/checkpoints: its run ended with exit code 3: model.vocab_size is 2" \
    "remove the cause, and start the run again"
done
run 0 runs runs
expect "runs counts it" 0 " refused before the first step are not shown; --all shows them"
check "... without a line" lacks stdout "runs/refused"
run 0 runs runs --all
check "... which it has with --all" matches stdout '^runs/refused  *failed'

# Settings of a YAML file are known by their paths.
cat >nemo.yaml <<'END'
model:
  sample_rate: 16000
  train_ds: {shuffle: true}
  perception:
    preprocessor:
      features: 80  # bins
      pad_to: 0
    encoder:
      n_layers: 17
      feat_in: ${model.perception.preprocessor.features}
  optim:
    name: adamw
END
run 0 train nemo.yaml
expect "a file of NeMo" 2 "model.perception.preprocessor.features = 80" "model.encoder.mels=80" "model.encoder.n_layer=17" \
  "optimizer.name=adamw" "not needed: pad_to"
check "... without values that are given elsewhere" lacks out "feat_in"
run 0 train "$debug" model.perception.encoder.d_model=8
expect "... the whole path decides" 2 "'model.encoder.n_embd'"
asked "a setting of NeMo's script" "--manifest FILE names a manifest" transcribe model dataset_manifest=x.json
asked "asr" "recordings are transcribed by \`choir transcribe RUN FILE ...\`" asr model a.wav
