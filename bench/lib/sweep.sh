# shellcheck shell=bash
# Sourced by bench/scaling.sh: its options, its points, and the run of one point.
# shellcheck disable=SC2034,SC2154  # kinds, repeats, silent ... are read there; here is set there
say() { echo "$*"; }
refuse() { echo "scaling.sh: $1" >&2; exit "${2:-2}"; }
sweep_usage() { sed -n '2,23s/^# \{0,1\}//p' "$here/bench/scaling.sh"; exit "$1"; }

parse_sweep() {
  kinds=() ranks_list="" layouts="dp" micros="" batch_ranks="" strong_global="" repeats=3 seconds=2 warmup=1
  silent=yes noise=0 name="" results=$here/runs/scaling plots=yes fresh="" dry="" deck="" overrides=() advice=()
  local all_cpu=""
  while [ $# -gt 0 ]; do
    case $1 in
      --weak | --strong | --batch) kinds+=("${1#--}"); shift; continue ;;
      --no-silent) silent=no; shift; continue ;;
      --no-plots) plots=no; shift; continue ;;
      --fresh) fresh=yes; shift; continue ;;
      --all-cpu) all_cpu=yes; shift; continue ;;
      --dry-run) dry=yes; shift; continue ;;
      -h | --help) sweep_usage 0 ;;
      --*) [ $# -ge 2 ] || refuse "$1 takes a value" ;;
    esac
    case $1 in
      --ranks) ranks_list=$2 ;;
      --layouts) layouts=$2 ;;
      --micro) micros=$2 ;;
      --batch-ranks) batch_ranks=$2 ;;
      --global) strong_global=$2 ;;
      --repeats) repeats=$2 ;;
      --seconds) seconds=$2 ;;
      --warmup) warmup=$2 ;;
      --noise) noise=$2 ;;
      --name) name=$2 ;;
      --results) results=$2 ;;
      --run | --target-loss) advice+=("$1" "$2") ;;
      --*) refuse "unknown option $1 (--help lists them)" ;;
      *=*) overrides+=("$1"); shift; continue ;;
      *) [ -z "$deck" ] || refuse "two decks are named, $deck and $1"
         deck=$1; shift; continue ;;
    esac
    shift 2
  done
  if [ -n "$all_cpu" ]; then
    [ "$PWD" = "$here" ] || : "${deck:=$here/inputs/bench_a.json}"
    : "${deck:=inputs/bench_a.json}" "${ranks_list:=1 2 4 8}" "${name:=cpu}"
    [ "$layouts" != dp ] || layouts="dp zero1@2 tp2@2 pp2@2"
    [ "$noise" != 0 ] || noise=48
    [ "$seconds" != 2 ] || seconds=1.5
    : "${strong_global:=48}"  # 6 per rank on 8 of them
    [ -e "$here/data/shakespeare/input.txt" ] || make -s -C "$here" data-shakespeare 2>/dev/null ||
      say "tiny Shakespeare is not at hand: random tokens take its place"
  fi
  [ -n "$deck" ] || { sweep_usage 2 >&2; }
  [ -r "$deck" ] || refuse "the deck '$deck' cannot be read"
  take_overrides
  [ "${#kinds[@]}" -gt 0 ] || kinds=(weak strong batch)
  numbers --ranks "$ranks_list"; numbers --micro "$micros"; numbers --repeats "$repeats"; numbers --global "$strong_global"
  numbers --batch-ranks "$batch_ranks"
}
# The sweep sets the batch and the layout of every row, and choir refuses a key that is given twice: overrides of the
# batch become options of the sweep, and those of keys that the rows vary are refused.
take_overrides() {
  local word kept=() key value
  micro_given=""
  for word in ${overrides[@]+"${overrides[@]}"}; do
    key=${word%%=*} value=${word#*=}
    case $key in
      train.micro_batch_size) micro_given=$value; : "${micros:=$value}" ;;
      train.global_batch_size) : "${strong_global:=$value}" ;;
      train.grad_accum) refuse "$word: the sweep sets the accumulation of every row; leave it out, or use --global N" ;;
      parallel.data) refuse "$word: the sweep sets the ranks of every row; use --ranks" ;;
      parallel.tensor | parallel.pipeline | parallel.context | parallel.zero)
        refuse "$word: the sweep sets the layout of every row; use --layouts (--help shows their names)" ;;
      *) kept+=("$word"); continue ;;
    esac
    [[ $value =~ ^[1-9][0-9]*$ ]] || refuse "$word: '$value' is no whole number above 0"
  done
  overrides=(${kept[@]+"${kept[@]}"})
  : "${micros:=1 2 4 8 16 32}"
}
numbers() {  # numbers OPTION "1 2 4"
  local number
  for number in $2; do
    [[ $number =~ ^[1-9][0-9]*$ ]] || refuse "$1: '$number' is no whole number above 0"
  done
}

# A number of the deck's train section; empty if the file does not have it.
deck_number() {  # deck_number KEY
  sed -nE 's/^[^/]*"'"$1"'": *([0-9]+).*/\1/p' "$deck" | head -n 1
}

prepare_sweep() {
  choir=${CHOIR:-$here/build/choir}
  [ -x "$choir" ] || refuse "$choir is missing: run make, or set CHOIR"
  in_job=${PBS_JOBID:-${SLURM_JOB_ID:-}}
  [ -n "$in_job" ] || export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}  # the same for any number of ranks
  if [ -z "$ranks_list" ]; then
    local most=${SLURM_NTASKS:-} n
    [ -n "$most" ] || { [ -n "${PBS_NODEFILE:-}" ] && most=$(grep -c . "$PBS_NODEFILE"); }
    most=${SWEEP_RANKS:-${most:-$(launch_cores)}}
    for ((n = 1; n <= most; n *= 2)); do ranks_list+=" $n"; done
    [ $((n / 2)) = "$most" ] || ranks_list+=" $most"
  fi
  speech=""; ! grep -q '"batch_duration"\|fastconformer' "$deck" || speech=yes
  micro_of_deck=${micro_given:-$(deck_number micro_batch_size)}
  [ "${micro_of_deck:-0}" -gt 0 ] || micro_of_deck=1
  if [ -n "$speech" ]; then
    micro_of_deck=1
    [[ " ${kinds[*]} " != *" batch "* ]] || refuse "--batch of a speech deck: its micro-batches are seconds of audio; choose --weak or --strong"
  fi
  local most=0 n
  for n in $ranks_list; do [ "$n" -le "$most" ] || most=$n; done
  [ "$most" -le "${SWEEP_RANKS:-$most}" ] || refuse "--ranks: $most are more than the $SWEEP_RANKS that the job was given"
  [ -n "$strong_global" ] || strong_global=$([ -n "$speech" ] || deck_number global_batch_size)
  [ "${strong_global:-0}" -gt 0 ] || strong_global=$((micro_of_deck * most))
  [ -n "$batch_ranks" ] || read -r batch_ranks _ <<<"$ranks_list"
  : "${name:=$(basename "$deck" .json)}"
  work=$here/build/scaling/$name
  [ -z "${SCALING_WORK:-}" ] || work=$SCALING_WORK/$name
  if [ -n "$dry" ]; then
    work=$(mktemp -d) || refuse "no temporary folder can be made" 6
    trap 'rm -rf "$work"' EXIT
    results=$work
  fi
  [ -z "$fresh" ] || rm -rf "$work"
  local folder
  for folder in "$work" "$results"; do
    mkdir -p "$folder" && [ -w "$folder" ] || refuse "the folder '$folder' cannot be written: choose another (--results)" 6
  done
  local identity
  identity="$(cksum <"$choir") $(cksum <"$deck") ${overrides[*]-} $micro_given $seconds $warmup ${OMP_NUM_THREADS:-}"
  # A sweep of which nothing was measured, as after a wrong command, holds nothing to keep.
  if [ -e "$work/identity" ] && [ "$(cat "$work/identity")" != "$identity" ] && ! compgen -G "$work/*.json" >/dev/null; then
    rm -rf "$work" && mkdir -p "$work"
  fi
  if [ ! -e "$work/identity" ]; then echo "$identity" >"$work/identity"
  elif [ "$(cat "$work/identity")" != "$identity" ]; then
    refuse "$work holds another sweep (program, deck or settings have changed since): --fresh removes it, --name tells them apart"
  fi
  rm -f "$work"/*.new
  gpu_clocks=""
  ! command -v nvidia-smi >/dev/null || gpu_clocks=$(nvidia-smi --query-gpu=name,clocks.sm,clocks.max.sm,clocks.mem,power.limit,driver_version \
    --format=csv,noheader 2>/dev/null | sort | uniq -c | tr -s ' \n' ' ')
  finished=0
  local layout kind
  for layout in $layouts; do layout_words "${layout%@*}"; done
  for kind in "${kinds[@]}"; do list_points "$kind"; done | sort -u -t' ' -k1,5 >"$work/points" || exit
  # Runs that are left: three for each reference, and of each point its repeats and one without communication.
  to_do=$(awk -v repeats="$repeats" -v silent="$silent" '{ n += repeats + (silent == "yes" && $3 > 1); g[$5] }
    END { print n + 3 * length(g) }' "$work/points")
  to_do=$((to_do + (noise > 0 ? 1 : 0) - $(find "$work" -name '*.json' | wc -l)))
  began=$SECONDS
  [ -s "$work/points" ] || refuse "no layout of '$layouts' fits the ranks ($ranks_list): nothing to measure"
}
# The rows of a sweep that is not started.
show_points() {
  local rows alone
  rows=$(wc -l <"$work/points") alone=$(awk '{ g[$5] } END { print 3 * length(g) }' "$work/points")
  say "a dry run of $choir with $deck: nothing was started; $rows rows would take $to_do runs of $seconds s and their starts, $alone of them on one rank, for comparison"
  { echo "sweep layout ranks micro-batch global-batch"; sort -k1,1 -k2,2 -k3,3n -k4,4n "$work/points"; } |
    awk '{ printf "  %-8s %-12s %6s %12s %13s\n", $1, $2, $3, $4, $5 }'
}

# Converts "tp2-pp2" to key=value words; $parts gets the number of ranks that share one copy of the
# work.
layout_words() {
  local part
  words=() parts=1
  for part in ${1//-/ }; do
    part=${part#parallel.} part=${part/tensor/tp} part=${part/pipeline/pp} part=${part/context/cp} part=${part/=/}
    case $part in
      dp) ;;
      zero[0-3]) words+=("parallel.zero=${part#zero}") ;;
      tp[1-9]*) words+=("parallel.tensor=${part#tp}"); parts=$((parts * ${part#tp})) ;;
      pp[1-9]*) words+=("parallel.pipeline=${part#pp}"); parts=$((parts * ${part#pp})) ;;
      cp[1-9]*) words+=("parallel.context=${part#cp}"); parts=$((parts * ${part#cp})) ;;
      *) refuse "unknown layout '$1': dp, zero1 to zero3, tpN, ppN, cpN (or tensor=N ...), joined by -" ;;
    esac
  done
}
largest_divisor() {  # largest_divisor NUMBER MOST
  local d=$2
  while [ "$d" -gt 1 ] && [ $(($1 % d)) -ne 0 ]; do d=$((d - 1)); done
  echo "$d"
}

# Prints lines "KIND LAYOUT RANKS MICRO GLOBAL".
list_points() {
  local layout ranks only data micro
  for layout in $layouts; do
    only=${layout#*@} layout=${layout%@*}
    layout_words "$layout"
    for ranks in $([ "$1" = batch ] && echo "$batch_ranks" || echo "$ranks_list"); do
      [ "$only" = "$layout" ] || [ "$only" = "$ranks" ] || continue
      # A layout of p ranks needs p ranks, sharding needs two.
      [ "$ranks" -ge "$parts" ] || continue
      [ "$ranks" -gt 1 ] || [[ $layout != zero* ]] || continue
      if [ "$1" = batch ]; then
        for micro in $micros; do echo "batch $layout $ranks $micro $((micro * (ranks / parts)))"; done
        continue
      fi
      if [ "$1" = weak ]; then echo "weak $layout $ranks $micro_of_deck $((micro_of_deck * ranks))"; continue; fi
      data=$((ranks / parts))
      micro=$(largest_divisor $((strong_global / data > 0 ? strong_global / data : 1)) "$micro_of_deck")
      echo "strong $layout $ranks $micro $strong_global"
    done
  done
}

# "GLOBAL RANKS MICRO": each global batch once, on one rank, in the smallest micro-batches of its
# points that divide it.
references() { awk '!($5 in m) || $4 < m[$5] { m[$5] = $4 } END { for (g in m) print g, 1, m[g] }' "$work/points" | sort -n; }

batch_words() {  # batch_words MICRO GLOBAL DATA_RANKS
  if [ -z "$speech" ]; then echo "train.micro_batch_size=$1 train.global_batch_size=$2"
  else echo "train.grad_accum=$(($2 / $3 > 0 ? $2 / $3 : 1))"
  fi
}

# The program runs in the background, so that signals are handled at once.
run_choir() {  # run_choir RANKS ARGUMENT...: exit code in $code
  local ranks=$1
  shift
  if [ -n "$in_job" ] && [ -x "$here/jobs/launch" ]; then
    # A node is filled before the next one is used.
    local each=$ranks
    [ "$ranks" -le "${SWEEP_PER_NODE:-$ranks}" ] || each=$SWEEP_PER_NODE
    launcher=$("$here/jobs/launch" -n "$ranks" -r "$each" --dry-run "$choir" 2>&1 | sed -n 's/^\$ //p')
    "$here/jobs/launch" -n "$ranks" -r "$each" "$choir" "$@" --note "launcher=$launcher" </dev/null &
  else
    launcher="${MPIEXEC:-mpiexec} -n $ranks"
    launch_exec "$ranks" "$choir" "$@" --note "launcher=$launcher" </dev/null &
  fi
  running=$!
  wait "$running"
  code=$?
  running=""
}
stop_sweep() {
  trap - INT TERM
  [ -z "${running:-}" ] || { kill "$running" 2>/dev/null; wait "$running" 2>/dev/null; }
  exec >&4  # the output was redirected to a file of the run
  say ""
  say "interrupted: $(ls "${work:-.}" 2>/dev/null | grep -c '\.json$') runs are kept in ${work:-?}; the same command goes on from there"
  exit "$1"
}
progress() {
  local left="" line
  if [ "$finished" -ge 2 ] && [ "$to_do" -gt "$finished" ]; then
    left=$(((SECONDS - began) * (to_do - finished) / finished))
    if [ "$left" -ge 90 ]; then left=", about $(((left + 30) / 60)) min left"; else left=", about $left s left"; fi
  fi
  finished=$((finished + 1))
  line=$(printf '%4d of %d  %s%s' "$finished" "$((to_do > finished ? to_do : finished))" "$*" "$left")
  if [ -t 1 ]; then printf '\r\033[K%s ' "$line"; else printf '%s\n' "$line"; fi
}
meaning() {  # meaning CODE: of an exit code of choir
  case $1 in
    2) echo "the deck or the command line" ;; 3) echo "the data" ;; 4) echo "the numbers" ;;
    5) echo "the communication" ;; 6) echo "the storage" ;; 124) echo "a time limit" ;; *) echo "exit code $1" ;;
  esac
}
# Every point would fail in the same way without data or with a deck that is refused, so the sweep ends. A model that one
# rank has no memory for is measured nevertheless: its rows are INVALID, because nothing shows that they are right.
stop_if_all_would_fail() {  # stop_if_all_would_fail FILE CODE
  [ "$2" = 3 ] || { [ "$2" = 2 ] && ! grep -q "out of \(host \)\?memory" "$1"; } || return 0
  say ""
  { grep -A 3 '^choir: ' "$1" || cat "$1"; } >&2
  refuse "nothing was measured, because of $(meaning "$2") (exit code $2); every point would fail in this way" "$2"
}

one_run() {  # one_run FILE RANKS ARGUMENT...: FILE.json, or FILE.txt and 1
  local file=$1 ranks=$2
  shift 2
  run_choir "$ranks" bench step "$deck" ${overrides[@]+"${overrides[@]}"} --no-ceilings --json "$file.new" \
    ${gpu_clocks:+--note "gpu_clocks=$gpu_clocks"} "$@" >"$file.txt" 2>&1
  # An invalid run (code 1) has results, too.
  if [ "$code" -le 1 ] && [ -s "$file.new" ]; then mv "$file.new" "$file.json"; return; fi
  rm -f "$file.new"
  return 1
}
why() { { grep -m 1 '^choir: ' "$1" || grep -m 1 . "$1" || echo "it said nothing"; } | sed "s/^choir: //"; }

# One rank, and twice more with changed last digits of its weights: the effect of rounding.
reference() {  # reference GLOBAL RANKS MICRO
  local file coins kind moved
  for coins in 0 1 2; do
    file=$work/reference.g$1 kind=reference moved=()
    [ "$coins" = 0 ] || file=$work/last_place.g$1.$coins kind="last place" moved=(--last-place "$coins")
    [ ! -e "$file.json" ] || continue
    progress "$kind: one rank, global batch $1"
    # shellcheck disable=SC2046
    one_run "$file" "$2" $(batch_words "$3" "$1" 1) --warmup 0 --steps 3 ${moved[@]+"${moved[@]}"} \
      --note "sweep=$kind" --note layout=one && continue
    [ "$code" -lt 128 ] || exit "$code"
    stop_if_all_would_fail "$file.txt" "$code"
    say "the reference of global batch $1 failed because of $(meaning "$code") (exit code $code): $(why "$file.txt")"  # its rows are INVALID, and the reason is printed
    return
  done
}

measure() {  # measure KIND LAYOUT RANKS MICRO GLOBAL REPEAT
  local point=$work/$1.$2.n$3.m$4.g$5
  local file=$point.$6 extra=()
  if [ -e "$file.json" ] || [ -e "$point.refused" ]; then return; fi
  progress "$1: $2 on $3 $([ "$3" = 1 ] && echo rank || echo ranks), micro-batch $4, global batch $5, $([ "$6" = silent ] && echo without communication || echo "repeat $6")"
  layout_words "$2"
  [ "$6" != silent ] || extra=(--no-comm)
  # shellcheck disable=SC2046
  one_run "$file" "$3" $(batch_words "$4" "$5" $(($3 / parts))) ${words[@]+"${words[@]}"} --warmup "$warmup" --seconds "$seconds" \
    ${extra[@]+"${extra[@]}"} --note "sweep=$1" --note "layout=$2" --note "repeat=$6" && return
  printf '%s\n%s\n%s %s %s\n%s\n' "$1" "$2" "$3" "$4" "$5" "exit code $code, $(why "$file.txt")" >"$point.new"
  mv "$point.new" "$point.refused"
}

measure_noise() {
  local file=$work/noise micro=$micro_of_deck
  [ ! -e "$file.json" ] || return 0
  progress "gradient noise scale: $noise pairs"
  one_run "$file" 1 train.micro_batch_size="$micro" train.global_batch_size=$((8 * micro)) --warmup "$warmup" --seconds "$seconds" \
    --gradient-noise "$noise" --note sweep=noise --note layout=dp || say "no gradient noise scale: $(why "$file.txt")"
}

report_sweep() {
  local base
  base=$results/$(date +%F)-scaling-$name
  "$choir" bench scaling "$work" --csv "$base.csv" --jsonl "$base.jsonl" ${advice[@]+"${advice[@]}"} >"$base.txt"
  local code=$?
  cat "$base.txt"
  [ "$code" -le 1 ] || exit "$code"
  say "rows in $base.csv, with the times of all steps in $base.jsonl; this text in $base.txt"
  if [ "$code" = 1 ]; then say "no row is valid, so there is nothing to draw" >&2
  elif [ "$plots" = yes ]; then "$here/bench/plots.sh" "$base.csv" "$base" || true
  fi
  exit "$code"
}
