# Sourced by the quickstarts of speech, with $build and $here set: their steps, each said before it is done.
# shellcheck shell=bash
# shellcheck source=../jobs/launch.sh
. "$here/../jobs/launch.sh"
choir=$build/choir
ranks=${QUICKSTART_RANKS:-2}
read -r -a overrides <<<"${QUICKSTART_OVERRIDES:-}"

say_and_run() {  # on all ranks
  echo "\$ mpiexec -n $ranks $*"
  local code=0
  launch "$ranks" "$@" || code=$?
  [ "$code" -eq 0 ] || { echo "That ended with exit code $code; the lines above say why." >&2; exit "$code"; }
}
# pack FOLDER RATE: the manifests of FOLDER/corpus to FOLDER/train, FOLDER/val, FOLDER/val_voices.
pack() {
  local part
  for part in train val val_voices; do
    [ -e "$1/corpus/$part.json" ] || continue
    # A corpus that was asked for anew (QUICKSTART_HOURS) is newer than what was packed of the one before.
    [ ! "$1/corpus/corpus.json" -nt "$1/$part" ] || rm -rf "${1:?}/$part"
    say_and_run "$choir" prepare audio "$1/corpus/$part.json" --out "$1/$part" --sample-rate "$2"
  done
}
# units FOLDER NAME TYPE [SIZE]: of the texts that train; labels FOLDER TOKENIZER: labels.NAME.bin of every part.
units() { say_and_run "$choir" prepare tokenizer "$1/train" --out "$1/$2" --type "$3" --vocab-size "${4:-0}"; }
labels() {
  local part parts=()
  for part in train val val_voices; do [ ! -d "$1/$part" ] || parts+=("$1/$part"); done
  say_and_run "$choir" prepare tokens "${parts[@]}" --tokenizer "$2"
}
train() {  # train DECK RUN OVERRIDE...: continues where it was; a run that is complete says how it ended
  local deck=$1 run=$2 start=$SECONDS
  shift 2
  say_and_run "$choir" train "$deck" run.dir="$run" "$@" ${overrides[@]+"${overrides[@]}"}
  echo "$run: $((SECONDS - start)) s"
}
