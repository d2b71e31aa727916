#!/usr/bin/env bash
# make quickstart: the text that replaces another one is recorded, Ctrl-C saves, the same command continues; and the
# numbers that a build prints.
. "$(dirname "$0")/lib/common.sh"

ln -s "$root/inputs" inputs
mkdir bin
cat >bin/bible <<'END'
#!/bin/sh
for verse in $(seq 2000); do echo "Gen1:$verse And God said, Let there be light $verse."; done
END
chmod +x bin/bible
small="model.n_layer=1 model.n_head=2 model.n_embd=16 model.block_size=16 optimizer.warmup_steps=2 log.interval=20 train.global_batch_size=4 train.micro_batch_size=1"
quickstart() {  # quickstart OVERRIDE...
  command="quickstart.sh $*"
  PATH=$work/bin:$PATH SHAKESPEARE_URL=file:///nowhere QUICKSTART_OVERRIDES="$small $*" timeout "$limit" \
    "$root/.make/quickstart.sh" "$build" >out 2>&1 </dev/null
  code=$?
}

quickstart train.max_steps=20 eval.interval=10
expect "without a network" 0 "could not be downloaded" "Corpus: the King James Bible" "20 steps of" "the loss fell from"
check "... the run names the text that it read" has runs/quickstart/deck.json '"data/kjv/input.txt"'
check "... which has no references" eval '! grep -q Gen data/kjv/input.txt'
run 0 eval runs/quickstart
expect "... and eval finds it" 0 "val_loss="

# The lines of the README's table of tasks that need no data but those of the quickstart, as typed. Trainings are shortened.
ln -s "$root/jobs" "$root/bench" . && mkdir -p build && ln -sf "$choir" build/choir
export SITE=local
ran=0
mkdir texts && head -c 50000 data/quickstart/input.txt >texts/a.txt
while read -r line; do
  line=${line/=FOLDER/=texts}
  case $line in
    *choir\ train*) line="${line/ train.max_steps=500/} train.max_steps=6 optimizer.warmup_steps=1" ;;
    *bench/scaling.sh*)
      line+=" model.n_layer=1 model.n_embd=32 --results results --name tasks --seconds 0.2 --repeats 1 --no-silent --no-plots" ;;
    *bench\ step*) line+=" --seconds 0.3 --no-ceilings" ;;
    *verify*) continue ;;  # tested elsewhere
  esac
  command=$line
  SCALING_WORK=$work/scaling timeout "$limit" bash -c "$line" >out 2>&1 </dev/null
  code=$?
  expect "README: $line" 0
  ran=$((ran + 1))
done < <(sed -nE 's/^\| [^|]*\| `((jobs\/launch -n [0-9] )?(build\/choir (train|plan|tune|rehearse|bench step)|bench\/scaling.sh) [^`]*)`.*/\1/p' \
  "$root/README.md" | grep -E 'inputs/(debug|gpt_quickstart|bench_.)\.json' | grep -v device=cuda)
check "... which are enough of them" test "$ran" -ge 8
matches_link() { has out "'data/quickstart/input.txt' is a link to data/kjv/input.txt"; }
run 1 train inputs/debug.json run.dir=from_link train.max_steps=1
check "a run says where the link leads" matches_link
rm -r data/quickstart
run 0 plan inputs/debug.json --ranks 2
expect "a plan needs no text" 0 "FITS" "'data/quickstart/input.txt' is missing: random tokens take its place here, with an assumed vocabulary of 65"
run 0 tune inputs/debug.json --out tuned.json
expect "... nor does tuning, whose deck still names it" 0 "an assumed vocabulary of 65"
check "... as it was written" has tuned.json data/quickstart/input.txt
run 1 train inputs/debug.json run.dir=refused
expect "... but training does" 3 "'data/quickstart/input.txt' is missing" "name the text that make quickstart took" 'data.train=["data/kjv/input.txt"]'

QUICKSTART_MINUTES=0.00001 quickstart eval.interval=0
expect "a slow machine makes fewer steps; a second run is another one" 0 "200 steps of" "minutes" "step=200 " \
  "run          runs/quickstart-2"

# After Ctrl-C the launcher ends with 1, although its ranks saved and ended with 75.
cat >bin/launcher <<'END'
#!/bin/bash
mpiexec "$@" || { code=$?; exit $((code == 75 ? 1 : code)); }
END
chmod +x bin/launcher
{ wait_for out "step=20 "; touch runs/quickstart-3/stop_now; } &
MPIEXEC=$work/bin/launcher quickstart train.max_steps=2000000 eval.interval=0 checkpoint.interval=0 optimizer.decay_steps=20
expect "a run that is stopped and saved" 0 "stopping after step" "checkpoint runs/quickstart-3/checkpoints/step_" "The run is saved; 'make quickstart' continues it."
sed -i 's/train.max_steps=.*/train.max_steps=20/' runs/quickstart-3/unfinished
quickstart
expect "... continues with the settings that it began with" 0 "the rest of its training" "train.max_steps=20" "run          runs/quickstart-3"

rm -r data
echo "exit 1" >bin/bible
quickstart train.max_steps=20
expect "neither text" 3 "There is no bible-kjv to replace it either: 'make deps'"

# The quickstarts of speech: a step that Ctrl-C ends, and a training that is stopped before it is saved.
quickstart_of_speech() {  # with a launcher of two lines; a test in the background ignores SIGINT
  command=quickstart_speech.sh code=0
  printf '#!/bin/bash\n%s\n' "$1" >bin/launcher
  chmod +x bin/launcher
  # shellcheck disable=SC2016
  MPIEXEC=$work/bin/launcher perl -e '$SIG{INT} = "DEFAULT"; exec @ARGV' "$root/.make/quickstart_speech.sh" "$build" >out 2>&1 || code=$?
}
mkdir -p runs/asr_digits
# shellcheck disable=SC2016
quickstart_of_speech 'kill -INT $PPID; exit 1'
expect "Ctrl-C in a step of preparation" 0 "== 1 of " "Stopped by Ctrl-C in this step; 'make quickstart-speech' continues."
check "... is no failure" lacks out "the lines above say why"
# shellcheck disable=SC2016
quickstart_of_speech 'case "$*" in *" train "*) echo "stopping after step 3" >>runs/asr_digits/log.txt; exit 1 ;; esac'
expect "a stop without a save" 0 "The run was stopped before it could be saved; 'make quickstart-speech' continues."
# shellcheck disable=SC2016
quickstart_of_speech 'case "$*" in *" train "*) exit 1 ;; esac'
expect "a training that fails" 1 "That ended with exit code 1; the lines above say why."
# shellcheck disable=SC2016
quickstart_of_speech 'case "$*" in *" bench step "*) echo "3 steps: median 1000.0 ms" ;; *" train "*) exit 1 ;; esac'
expect "a slow machine takes fewer steps of the deck" 1 "This machine is slow or busy: 500 of the deck's 2500 steps, 1000 ms each, take about 8.3 minutes" \
  "run.dir=runs/asr_digits " "train.max_steps=500"
echo '{"step":120,"loss":1.5}' >runs/asr_digits/metrics.jsonl
echo '{"train": {"max_steps": 500}}' >runs/asr_digits/deck.json
# shellcheck disable=SC2016
quickstart_of_speech 'case "$*" in *" train "*) exit 1 ;; esac'
expect "... also when it goes on" 1 "runs/asr_digits has 120 of 500 steps and is continued" "run.dir=runs/asr_digits " "train.max_steps=500"
check "... without timing a step again" lacks out "Timing a step"
rm -r runs/asr_digits
# shellcheck disable=SC2016
quickstart_of_speech 'case "$*" in *" bench step "*) echo "3 steps: median 1.0 ms" ;; *" train "*) exit 1 ;; esac'
expect "a fast machine takes all steps of the deck" 1 "for about 10 minutes in all" "All 2500 steps of the deck, 1 ms each"
check "... and leaves them to the deck" lacks out "train.max_steps="

cat >Makefile <<'END'
all: a b
	@echo "  link  all"
a b:
	@echo "  c++   $@"
	@echo "a line of its own"
	@until [ -e go ]; do sleep 0.1; done
END
{ wait_for out "a line of its own" && touch seen; touch go; } &
"$root/.make/progress.sh" built make --no-print-directory >out 2>&1
code=$? command="progress.sh make"
check "lines of a build are shown while it goes on" test -e seen
expect "steps of a build are numbered" 0 "[1/3]  c++   a" "[2/3]  c++   b" "[3/3]  link  all"
expect "... and it says beforehand how many there are, and why" 0 "make: 3 steps in built, because nothing is compiled yet"
check "... and other lines are not" test "$(grep -cx "a line of its own" out)" = 2
sed -i 's/"  link  all"/"  link  all"; exit 3/' Makefile
"$root/.make/progress.sh" built make --no-print-directory >out 2>&1
code=$?
expect "a build that fails, fails" 2 "[3/3]  link  all"

# The plan of a build runs none of its commands, and the time that is left falls while steps of equal weight end.
cat >Makefile.even <<'END'
all: a b c d
	@echo "  link  all" && echo linked >>linkings
a b c d:
	@echo "  nvcc  $@"
	@sleep 1
END
PROGRESS_AFTER=1 "$root/.make/progress.sh" built make --no-print-directory -f Makefile.even >out 2>&1
code=$? command="progress.sh make"
expect "a build is estimated" 0 "[4/5]  nvcc  d" " s left)"
check "... without running its commands beforehand" test "$(cat linkings)" = linked
check "... from what was done" number_is "$(sed -nE 's/.*nvcc  d +[(]([0-9]+) s left[)]/\1/p' out)" below 6

# A group of sources is one step, and a new revision alone is named as the reason.
echo '#include "src/app/run.cpp"' >group_1.cpp
cat >Makefile.groups <<'END'
all:
	@echo "  c++   src/app: $$(sed -nE 's|.*/(.*)\.cpp"|\1|p' group_1.cpp | tr '\n' ' ')"
	@echo "  c++   src/core/build_info.cpp"
	@echo "  link  all"
END
"$root/.make/progress.sh" built make --no-print-directory -f Makefile.groups >out 2>&1
code=$? command="progress.sh make"
expect "a group of sources is a step" 0 "make: 3 steps in built" "[1/3]  c++   src/app: run" "[3/3]  link  all"
sed -i '/src\/app/d' Makefile.groups
mkdir -p built/obj
touch -d yesterday built/flags
touch built/obj/a.o built/choir
"$root/.make/progress.sh" built make --no-print-directory -f Makefile.groups >out 2>&1
code=$?
expect "a new revision is no change of sources" 0 "make: 2 steps in built, because the revision of git has changed since the last build"
rm -r built

# Ctrl-C ends a build with 130, and says how to go on. A terminal sends the signal to the whole group.
sed -i 's/until .*/sleep 5/' Makefile
setsid perl -e '$SIG{INT} = "DEFAULT"; exec @ARGV' "$root/.make/progress.sh" built make --no-print-directory >out 2>&1 &
build_pid=$!
wait_for out "  c++   a"
kill -INT -- -"$build_pid"
wait "$build_pid"
code=$?
expect "Ctrl-C ends a build with 130" 130 "the build was stopped by Ctrl-C; the same command continues it"

# A step of a quickstart is timed thrice; more minutes continue a run that was shortened.
mkdir -p fitting
printf '%s\n' '#!/bin/bash' 'echo x >>fitting/timings' \
  'case $(wc -l <fitting/timings) in 2) ms=90 ;; *) ms=205 ;; esac' 'echo "step: median $ms ms, 9 steps"' >fitting/choir
chmod +x fitting/choir
echo '{ "max_steps": 8000 }' >fitting/deck.json
fitting() {  # fitting MINUTES: the overrides, and what is said
  command="fit for $1 minutes" code=0
  # shellcheck disable=SC2016,SC1091
  bash -euc 'build=$1/fitting here=$2/.make again="make quickstart-speech" minutes=$3
    . "$here/speech_steps.sh"
    launch() { shift; "$@"; }
    fit fitting/deck.json fitting/run 50 train.precision=fp32
    echo "overrides: ${fitted[*]}"
    shortened fitting/run' fitting "$work" "$root" "$1" >out 2>&1 || code=$?
}
fitting 6
expect "the shortest of three timings counts" 0 "This machine is slow or busy: 2000 of the deck's 8000 steps, 90 ms each" \
  "overrides: train.precision=fp32 train.max_steps=2000" \
  "fitting/run: 2000 of the deck's 8000 steps (90 ms a step)" \
  "QUICKSTART_MINUTES=25 make quickstart-speech continues to all steps of the decks: 25 minutes of training in all."
fitting 3
expect "fewer minutes change nothing" 0 "overrides: train.precision=fp32 train.max_steps=2000"
fitting 12
expect "more minutes continue it" 0 "is continued to 4000 of the deck's 8000 steps" "train.max_steps=4000"
fitting 25
expect "... to the end" 0 "is continued to 8000 of the deck's 8000 steps" "train.max_steps=8000"
check "... of which nothing more is said" lacks out "continues to all"
check "... and the step is not timed again" test "$(wc -l <fitting/timings)" = 3

# A run that is faster than it was timed goes on within the minutes; the offer at the end is one, by the runs' own steps.
cat >fitting/fast <<'END'
#!/bin/bash
echo '{"step":9,"loss":1,"dt":0.045,"sps":1}' >"${4#run.dir=}/metrics.jsonl"
END
cp fitting/fast fitting/choir
fitted_training() {  # fitted_training SCRIPT
  # shellcheck disable=SC2016,SC1091
  bash -euc 'build=$1/fitting here=$2/.make again="make quickstart-speech" minutes=6
    . "$here/speech_steps.sh"
    launch_run() { shift 2; echo "trained: $*"; bash fitting/fast "$@"; }
    launch_stops() { echo 0; }
    '"$1" fitting "$work" "$root" >out 2>&1
  code=$? command="train_fitted"
}
settle() {  # settle RUN MILLISECONDS PERCENT: a run that was shortened to 2000 steps
  mkdir -p "fitting/$1"
  printf '%s\n' "train.precision=fp32" "train.max_steps=2000" >"fitting/$1/settings"
  echo "$2 8000 $3" >"fitting/$1/timed"
}
settle one 90 50
settle two 300 25
# shellcheck disable=SC2016
fitted_training 'mapfile -t fitted <fitting/one/settings
  train_fitted fitting/deck.json fitting/one
  shortened fitting/one fitting/two'
expect "a training that is faster than it was timed goes on" 0 "train.max_steps=2000" "45.0 ms each (about 6 minutes for all trainings)" \
  "fitting/one is continued to 4000 of the deck's 8000 steps" "train.max_steps=4000"
check "... once" test "$(grep -c '^trained:' out)" = 2
check "... and there is one offer, that of the run that needs most" \
  test "$(sed -nE 's/^QUICKSTART_MINUTES=([0-9]+) .*/\1/p' out)" = 161
