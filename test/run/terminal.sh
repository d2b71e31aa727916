#!/usr/bin/env bash
# Names that contain control sequences, in decks, models, manifests, prompts, runs and logs: all of
# them are printed visibly, and a terminal executes none of them.
. "$(dirname "$0")/lib/common.sh"
. "$root/test/run/lib/golden_models.sh"

# The title of the terminal, C1 controls, a return, a line of its own, and letters in reverse; as
# bytes and as JSON.
evil=$'x\e]0;owned\a\xc2\x9b2J\r\nforged \xe2\x80\xae'
in_json='x\u001b]0;owned\u0007\u009b2J\r\nforged \u202e'
shown='x\u001b]0;owned\u0007\u009b2'

# The file has no control characters except tabs and line ends, nothing that reverses letters, and
# is UTF-8.
is_clean() {
  ! grep -qaP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]' "$1" &&
    iconv -f UTF-8 -t UTF-8 "$1" >/dev/null
}
seen() {  # seen NAME CODE WORDS...: that exit code, these words, no control sequence, and no line that a name began
  local name=$1
  expect "$@" && check "$name: no control sequence" is_clean out && check "$name: no line of its own" eval "! grep -qa '^forged' out"
}

# Decks: names of files, keys and values.
echo "{\"mo${in_json}del\": {}}" >key.json
run 2 train key.json
seen "a section of a deck" 2 "$shown"
echo "{\"model\": {\"norm\": \"$in_json\"}}" >value.json
run 0 train value.json
seen "a value of a deck" 2 "$shown"
run 0 train "$debug" "mo${evil}del.x=1"
seen "a key of the command line" 2 "$shown"
run 0 train "$debug" "model.type=$evil"
seen "a value of the command line" 2 "$shown"
run 0 train "no$evil.json"
seen "the name of a deck" 2 "$shown"
run 0 train "$debug" data.train="[\"no$in_json.txt\"]" run.dir=never
seen "the name of a text" 3 "$shown"

# A run whose deck has such values.
train 2 run run.name="$evil" data.tokenizer=byte
seen "a run" 0 "summary:"
check "... its start.txt" is_clean run/start.txt
check "... its log" is_clean run/log.txt
run 0 inspect run/checkpoints/"$(newest run)"
seen "inspect" 0 "checkpoint run/"
run 0 inspect run/checkpoints/"$(newest run)" --json
seen "inspect as JSON" 0 "$in_json"
check "... which is still JSON" perl -MJSON::PP -e 'local $/; decode_json(<STDIN>)' <stdout
run 0 eval "no$evil"
seen "a run that is not there" 6 "$shown"
printf '[2026-11-22 04:00:00.000][W] step 3: %s\n\x9b2J\n' "$evil" >>run/log.txt
run 0 report run
seen "report" 0 "run/report.html"
check "... its page" is_clean run/report.html
mv run "run$evil"
run 0 report "run$evil"
seen "report of such a folder" 0 "run$shown"
mv "run$evil" run
printf 'ranks,tok_s,valid\n' >"sweep$evil.csv"
run 0 report "sweep$evil.csv"
seen "report of such a table" 3 "sweep$shown"

# Prompts and answers: a pipe gets the bytes, a terminal gets the printable form.
run 0 generate run --prompts "no$evil"
seen "prompts that are not there" 3 "$shown"
run 0 generate run --prompt "$evil" --tokens 1 --temperature 0
check "a pipe gets the bytes of a text" grep -qaF "$(printf '\e]0;owned\a')" stdout
if command -v script >/dev/null; then
  echo "exec '$choir' generate run --prompt \$'x\\e]0;owned\\a' --tokens 1 --temperature 0" >ask.sh
  script -qec "bash ask.sh" screen >/dev/null </dev/null
  check "a terminal gets what is printable" has screen '\u001b]0;owned\u0007'
  check "... and nothing else" lacks screen $'\e]0;'
  # Nothing is wider than the terminal, except words that are, and pipes and files get whole lines.
  narrow() {  # narrow COLUMNS WORDS: no line of the screen is wider, unless it is one word
    script -qec "stty cols $1; '$choir' $2" screen >/dev/null </dev/null
    check "$1 columns: $2" awk -v most="$1" '/^Script / { next } { sub(/\r$/, ""); line = $0; sub(/^ */, ""); ++n; if (length(line) > most && / /) { print line; bad = 1 } } END { exit bad || !n }' screen
  }
  narrow 60 "plan '$root/inputs/verify_gpt.json' --ranks 2 --all"
  narrow 60 "inspect run --compare run/checkpoints/step_00000010"
  narrow 80 "inspect run --compare run/checkpoints/step_00000010"
  narrow 80 "train --check '$debug' data.train='[\"text.txt\"]' run.dir=new"
  narrow 60 "train nosuch.json"
  narrow 60 "train --describe train"
  # A row of a table is one line, although its columns do not all fit.
  cp -r run a_run_with_a_long_name_of_forty_letters_
  narrow 80 "runs ."
  check "... each run in one line" eval '[ "$(grep -c "^./[^ ]* *finished" screen)" = 2 ] && ! grep -q "^    " screen'
  check "... and the missing columns are named" has screen "(too wide for this terminal, shown by"
  rm -r a_run_with_a_long_name_of_forty_letters_
  narrow 80 "plan '$root/inputs/verify_gpt.json' --ranks 2 --target a100 --calibration assumed train.precision=fp32"
  check "... with memory and time in the row of a layout" grep -qE "^ *1 +dp=.* [kMG]iB .* m?s +[0-9,]+" screen
  script -qec "stty cols 60; cd '$root' && jobs/launch -n 2 '$choir' train nosuch.json" screen >/dev/null </dev/null
  check "an error under jobs/launch fits the terminal, too" awk '{ sub(/\r$/, "") } /^choir:|^  / { ++n; if (length($0) > 60) bad = 1 } END { exit bad || !n }' screen
  run 0 plan "$root/inputs/verify_gpt.json" --ranks 8
  check "a file gets longer lines" awk 'length($0) > 80 { ++n } END { exit !n }' stdout
fi

# Manifests and conversations.
echo "{\"audio_filepath\": \"no$in_json.wav\", \"duration\": 1, \"text\": \"a\"}" >manifest.json
run 0 prepare audio manifest.json --out audio
seen "a path of a manifest" 3 "$shown"
echo "{\"messages\": [{\"role\": \"$in_json\", \"content\": \"a\"}]}" >role.jsonl
run 0 prepare chat role.jsonl --out chat
seen "a role of a conversation" 3 "$shown"
echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$in_json\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}" >chat.jsonl
run 0 prepare chat chat.jsonl --show 1
expect "prepare chat --show" 0 "$shown"
check "... no control sequence" lacks out $'\e'

# Models of other programs: names of tensors, and the type.
export EVIL=$in_json
tiny make llama llama
perl -0777 -i -pe '
  my $n = unpack "Q<", $_; my $header = substr $_, 8, $n; my $data = substr $_, 8 + $n;
  my $end = length $data; my $behind = $end + 4;
  $header =~ s/\}\s*$/,"$ENV{EVIL}":{"dtype":"F32","shape":[1],"data_offsets":[$end,$behind]}}/;
  $_ = pack("Q<", length $header) . $header . $data . "\0" x 4' llama/model.safetensors
run 2 import llama --out model
seen "a tensor that is not known" 6 "$shown"
run 0 import llama --out imported --allow-unused
seen "a tensor that is left out" 0 "left out: $shown"
sed -i "s/\"llama\"/\"$(printf %s "$in_json" | sed 's/\\/\\\\/g')\"/" llama/config.json
run 0 import llama --out model
seen "the type of a model" 2 "$shown"
