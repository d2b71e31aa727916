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
parts="train val val_voices val_barge_in"  # those that a corpus may have
# pack FOLDER RATE [CORPUS]: the manifests of CORPUS (FOLDER/corpus) to FOLDER/train, FOLDER/val ...
pack() {
  local part corpus=${3:-$1/corpus}
  for part in $parts; do
    [ -e "$corpus/$part.json" ] || continue
    drop_older "$corpus" "$1/$part"
    say_and_run "$choir" prepare audio "$corpus/$part.json" --out "$1/$part" --sample-rate "$2"
  done
}
# drop_older CORPUS FOLDER: what was made of the corpus before, when it was asked for anew (QUICKSTART_HOURS).
drop_older() { [ ! "$1/corpus.json" -nt "$2" ] || rm -rf "${2:?}"; }
# units FOLDER NAME TYPE [SIZE]: of the texts that train; labels FOLDER TOKENIZER: labels.NAME.bin of every part.
units() { say_and_run "$choir" prepare tokenizer "$1/train" --out "$1/$2" --type "$3" --vocab-size "${4:-0}"; }
labels() {
  local part folders=()
  for part in $parts; do [ ! -d "$1/$part" ] || folders+=("$1/$part"); done
  say_and_run "$choir" prepare tokens "${folders[@]}" --tokenizer "$2"
}
train() {  # train DECK RUN OVERRIDE...: continues where it was; a run that is complete says how it ended
  local deck=$1 run=$2 start=$SECONDS
  shift 2
  say_and_run "$choir" train "$deck" run.dir="$run" "$@" ${overrides[@]+"${overrides[@]}"}
  echo "$run: $((SECONDS - start)) s"
}
