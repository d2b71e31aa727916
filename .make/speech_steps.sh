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
# fit DECK RUN PERCENT OVERRIDE...: sets `fitted` to the overrides with which the training takes about this part of
# $minutes on this machine: at most the steps of the deck, and at least a fifth of them. A run that has begun keeps its own,
# in RUN/settings, until $minutes allow more steps. RUN/timed has the milliseconds of a step, the deck's steps, and PERCENT;
# after a training, these are the milliseconds of its own steps.
fit() {
  local deck=$1 run=$2 percent=$3 all step steps
  shift 3
  fitted=("$@")
  if [ -s "$run/settings" ]; then mapfile -t fitted <"$run/settings"; more_steps "$run"; return 0; fi
  if [ -e "$run/metrics.jsonl" ] || [[ " ${overrides[*]-}" == *" train.max_steps="* ]]; then return 0; fi
  all=$(sed -nE 's/.*"max_steps": ([0-9]+).*/\1/p' "$deck")
  echo "Timing a step of $deck ..."
  step=$(shortest_step "$deck" "$@")
  [ -n "$step" ] || { echo "A step could not be timed: the run takes the $all steps of its deck."; return 0; }
  mkdir -p "$run"
  echo "$step $all $percent" >"$run/timed"
  steps=$(allowed_steps "$run")
  if [ "$steps" -eq "$all" ]; then echo -n "All $all steps of the deck"; else
    fitted+=("train.max_steps=$steps")
    echo -n "This machine is slow or busy: $steps of the deck's $all steps"
  fi
  awk -v step="$step" -v n="$steps" 'BEGIN { printf ", %.0f ms each, take about %.1f minutes.\n", step, n * step / 60000 }'
  printf '%s\n' ${fitted[@]+"${fitted[@]}"} >"$run/settings"
}
# shortest_step DECK OVERRIDE...: prints the milliseconds of a step, the least of three timings: other programs may slow
# down one of them. It prints nothing if none succeeds.
shortest_step() {
  local deck=$1 _
  shift
  for _ in 1 2 3; do
    launch "$ranks" "$choir" bench step "$deck" "$@" --warmup 1 --seconds 1.5 --no-ceilings 2>&1 | sed -nE 's/.*: median ([0-9.]+) ms.*/\1/p' || true
  done | sort -g | head -n 1
}
# allowed_steps RUN: prints the steps that $minutes allow a run, by RUN/timed; nothing without this file.
allowed_steps() {
  [ ! -s "$1/timed" ] || awk -v minutes="$minutes" '{
    n = int(minutes * $3 * 600 / $1 / 10) * 10; least = int($2 / 5)
    print (n < least ? least : n > $2 ? $2 : n)
  }' "$1/timed"
}
# shortened_steps RUN: prints the steps of a run that has fewer than its deck; nothing for others.
shortened_steps() {
  [ ! -s "$1/timed" ] || [ ! -s "$1/settings" ] || sed -nE 's/^train\.max_steps=([0-9]+)$/\1/p' "$1/settings"
}
# wanted_steps RUN: prints the steps to which a shortened run is continued: all of its deck, or at least a quarter more, if
# $minutes allow them; nothing for others. A smaller gain is not worth a learning rate that rises again.
wanted_steps() {
  local before steps all
  before=$(shortened_steps "$1") steps=$(allowed_steps "$1")
  if [ -z "$before" ] || [ -z "$steps" ] || [ "$steps" -le "$before" ]; then return 0; fi
  read -r _ all _ <"$1/timed"
  if [ "$steps" -eq "$all" ] || [ $((4 * steps)) -ge $((5 * before)) ]; then echo "$steps"; fi
}
# retime RUN: the median step of the run itself replaces the timing in RUN/timed.
retime() {
  local step all percent
  [ -s "$1/timed" ] && [ -s "$1/metrics.jsonl" ] || return 0
  step=$(sed -nE 's/^\{"step":.*"dt":([0-9.e+-]+),.*/\1/p' "$1/metrics.jsonl" | sort -g |
    awk '{ dt[NR] = $1 } END { if (NR > 0) printf "%.1f", 1000 * dt[int((NR + 1) / 2)] }')
  [ -n "$step" ] || return 0
  read -r _ all percent <"$1/timed"
  echo "$step $all $percent" >"$1/timed"
}
# train_fitted DECK RUN OVERRIDE...: trains with `fitted` beside the overrides. A run that is faster than it was
# timed goes on to the steps that $minutes allow it.
train_fitted() {
  local deck=$1 run=$2 before
  shift 2
  train "$deck" "$run" "$@" ${fitted[@]+"${fitted[@]}"}
  retime "$run"
  while [ -n "$(wanted_steps "$run")" ]; do
    before=$(shortened_steps "$run")
    more_steps "$run"
    train "$deck" "$run" "$@" ${fitted[@]+"${fitted[@]}"}
    retime "$run"
    [ "$(shortened_steps "$run")" != "$before" ] || break
  done
}
# more_steps RUN: raises the steps of a run in `fitted` and RUN/settings to wanted_steps, if there are any.
more_steps() {
  local before steps all step each
  before=$(shortened_steps "$1") steps=$(wanted_steps "$1")
  [ -n "$steps" ] || return 0
  read -r step all _ <"$1/timed"
  for each in "${!fitted[@]}"; do
    [ "${fitted[each]}" != "train.max_steps=$before" ] || fitted[each]="train.max_steps=$steps"
  done
  printf '%s\n' "${fitted[@]}" >"$1/settings"
  echo "$1 is continued to $steps of the deck's $all steps, $step ms each (about $minutes minutes for all trainings). Its learning rate decays over all of these, so it rises again first."
}
# shortened RUN...: prints which runs have fewer steps than their decks, and the one command that continues all of them.
shortened() {
  local run steps step all percent needed most=0
  for run; do
    steps=$(shortened_steps "$run")
    [ -n "$steps" ] || continue
    read -r step all percent <"$run/timed"
    [ "$steps" -lt "$all" ] || continue
    echo "$run: $steps of the deck's $all steps ($step ms a step)"
    needed=$(awk -v step="$step" -v all="$all" -v percent="$percent" 'BEGIN { print int(all * step / 600 / percent) + 1 }')
    [ "$needed" -le "$most" ] || most=$needed
  done
  [ "$most" -eq 0 ] || echo "QUICKSTART_MINUTES=$most $again continues to all steps of the decks: $most minutes of training in all."
}
# kept RUN...: prints how far each of the runs that exist has come.
kept() {
  local run step all wanted
  for run; do
    [ -s "$run/metrics.jsonl" ] || continue
    step=$(sed -nE 's/^\{"step":([0-9]+).*/\1/p' "$run/metrics.jsonl" | tail -n 1)
    all=$(sed -nE 's/.*"max_steps": *([0-9]+).*/\1/p' "$run/deck.json" | head -n 1)
    wanted=$(wanted_steps "$run")
    if [ "$step" = "$all" ] && [ -n "$wanted" ]; then echo "  $run has $step steps and is continued to $wanted"
    elif [ "$step" = "$all" ]; then echo "  $run is complete ($all steps) and kept; rm -r $run trains it anew"
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
