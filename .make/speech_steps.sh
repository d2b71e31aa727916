# Sourced by the quickstarts of speech, with $build, $here and $again (the command that continues) set:
# their steps, each of which is printed first.
# shellcheck shell=bash
# shellcheck source=../jobs/launch.sh
. "$here/../jobs/launch.sh"
choir=$build/choir
ranks=${QUICKSTART_RANKS:-2}
read -r -a overrides <<<"${QUICKSTART_OVERRIDES:-}"

failed() { echo "That ended with exit code $1; the lines above say why." >&2; exit "$1"; }
# stopped WORDS: a quickstart that the user stops ends with 0, whatever was saved.
stopped() {
  echo "$1; '${again:?}' continues." >&2
  [ "$BASH_SUBSHELL" -eq 0 ] || exit 130  # of a pipe: the quickstart must end, too
  exit 0
}
say_and_run() {  # on all ranks
  echo "\$ mpiexec -n $ranks $*"
  local code=0 interrupted=
  trap 'interrupted=yes' INT  # the ranks get it, too; this shell waits for them
  launch "$ranks" "$@" || code=$?
  trap - INT
  [ -z "$interrupted" ] || stopped "Stopped by Ctrl-C in this step"
  [ "$code" -eq 0 ] || failed "$code"
}
parts="train val val_voices val_barge_in"  # the parts that a corpus may have
# pack FOLDER RATE [CORPUS]: packs the manifests of CORPUS (FOLDER/corpus) to FOLDER/train,
# FOLDER/val ...
pack() {
  local part corpus=${3:-$1/corpus}
  for part in $parts; do
    [ -e "$corpus/$part.json" ] || continue
    drop_older "$corpus" "$1/$part"
    say_and_run "$choir" prepare audio "$corpus/$part.json" --out "$1/$part" --sample-rate "$2"
  done
}
# drop_older CORPUS FOLDER: removes the files made from an older corpus, if a new one was requested
# (QUICKSTART_HOURS).
drop_older() { [ ! "$1/corpus.json" -nt "$2" ] || rm -rf "${2:?}"; }
# units FOLDER NAME TYPE [SIZE]: trains units on the training texts; labels FOLDER TOKENIZER: writes
# labels.NAME.bin of every part.
units() { say_and_run "$choir" prepare tokenizer "$1/train" --out "$1/$2" --type "$3" --vocab-size "${4:-0}"; }
labels() {
  local part folders=()
  for part in $parts; do [ ! -d "$1/$part" ] || folders+=("$1/$part"); done
  say_and_run "$choir" prepare tokens "${folders[@]}" --tokenizer "$2"
}
# chat FOLDER NAME OPTION...: writes the questions about FOLDER/corpus, and their answers, to
# FOLDER/NAME_train, FOLDER/NAME_val ...; as a control, those of val to FOLDER/NAME_shuffled, where
# question n has the clip of question n + 7.
chat() {
  local part folder=$1 name=$2 said=$1/corpus/conversations
  shift 2
  awk '
    { line[NR] = $0; match($0, /{"from":"User","type":"audio"[^}]*}/); clip[NR] = substr($0, RSTART, RLENGTH) }
    END { for (n = 1; n <= NR; ++n) { other = clip[(n + 6) % NR + 1]; at = index(line[n], clip[n])
            print substr(line[n], 1, at - 1) other substr(line[n], at + length(clip[n])) } }
  ' "$said/val.jsonl" >"$said/shuffled.jsonl"
  for part in train val val_voices shuffled; do
    drop_older "$folder/corpus" "$folder/${name}_$part"
    say_and_run "$choir" prepare chat "$said/$part.jsonl" --out "$folder/${name}_$part" "$@"
  done
}
# answers RUN CONTROL: prints its exact matches on its validation sets, and on the folder CONTROL.
answers() {
  local run=$1
  say_and_run "$choir" eval "$run" eval.answers=0 | tee "$run/eval.txt"
  say_and_run "$choir" eval "$run" eval.answers=0 'data.validation={"shuffled": "'"$2"'"}' | tee "$run/control.txt"
  matches() { sed -nE "s/.*'$1': .*exact match ([0-9.]+ %).*/\1/p" "$2" | head -n 1; }
  echo
  echo "== Done in $((SECONDS - begin)) s. Answers that are right to the letter:"
  echo "new words                        $(matches words "$run/eval.txt")"
  echo "new words of new voices          $(matches voices "$run/eval.txt")"
  echo "control: the clip of another one $(matches shuffled "$run/control.txt")"
}
# fit DECK RUN MINUTES OVERRIDE...: sets `fitted` to the overrides with which the training takes about MINUTES on this
# machine: at most the steps of the deck, and at least a fifth of them. A run that has begun keeps its own, in RUN/settings.
fit() {
  local deck=$1 run=$2 minutes=$3 all step steps
  shift 3
  fitted=("$@")
  if [ -s "$run/settings" ]; then mapfile -t fitted <"$run/settings"; fi
  if [ -s "$run/settings" ] || [ -e "$run/metrics.jsonl" ] || [[ " ${overrides[*]-}" == *" train.max_steps="* ]]; then return 0; fi
  all=$(sed -nE 's/.*"max_steps": ([0-9]+).*/\1/p' "$deck")
  echo "Timing a step of $deck ..."
  step=$(launch "$ranks" "$choir" bench step "$deck" "$@" --warmup 1 --seconds 4 --no-ceilings 2>&1 | sed -nE 's/.*: median ([0-9.]+) ms.*/\1/p') || step=
  [ -n "$step" ] || { echo "A step could not be timed: the run takes the $all steps of its deck."; return 0; }
  steps=$(awk -v step="$step" -v minutes="$minutes" -v all="$all" \
    'BEGIN { n = int(minutes * 60000 / step / 10) * 10; least = int(all / 5); print (n < least ? least : n > all ? all : n) }')
  if [ "$steps" -eq "$all" ]; then echo -n "All $all steps of the deck"; else
    fitted+=("train.max_steps=$steps")
    echo -n "This machine is slow: $steps of the deck's $all steps"
  fi
  awk -v step="$step" -v n="$steps" 'BEGIN { printf ", %.0f ms each, take about %.1f minutes.\n", step, n * step / 60000 }'
  mkdir -p "$run"
  printf '%s\n' ${fitted[@]+"${fitted[@]}"} >"$run/settings"
}
# kept RUN...: prints how far each of the runs that exist has come.
kept() {
  local run step all
  for run; do
    [ -s "$run/metrics.jsonl" ] || continue
    step=$(sed -nE 's/^\{"step":([0-9]+).*/\1/p' "$run/metrics.jsonl" | tail -n 1)
    all=$(sed -nE 's/.*"max_steps": *([0-9]+).*/\1/p' "$run/deck.json" | head -n 1)
    if [ "$step" = "$all" ]; then echo "  $run is complete ($all steps) and kept; rm -r $run trains it anew"
    else echo "  $run has ${step:-0} of ${all:-?} steps and is continued"; fi
  done
}
train() {  # train DECK RUN OVERRIDE...: continues where it was; a complete run prints how it ended
  local deck=$1 run=$2 start=$SECONDS
  shift 2
  set -- "$choir" train "$deck" run.dir="$run" "$@" ${overrides[@]+"${overrides[@]}"}
  echo "\$ mpiexec -n $ranks $*"
  local code=0 stops
  stops=$(launch_stops "$run")
  launch_run "$run" "$ranks" "$@" || code=$?
  case $code in
    0) ;;
    75) stopped "The run is saved" ;;
    *) [ "$(launch_stops "$run")" -eq "$stops" ] || stopped "The run was stopped before it could be saved"
      failed "$code" ;;
  esac
  echo "$run: $((SECONDS - start)) s"
}
