#!/usr/bin/env bash
# gpu_report.sh [OPTION...]: what choir does on the GPU of this machine, in one folder of text, CSV and JSON to keep under
# bench/results/: facts, doctor, the CUDA tests, NCCL on one card, a step, one of a speech recogniser, a training whose
# losses are known, PyTorch beside it, attention, products, ops, what each choice is worth (matrix), every kernel of two
# steps (ncu), compute-sanitizer; clocks all the while; at the end what an H100 did before beside what was measured. With
# several GPUs their parts come first, and the nine minutes are for them and for the parts that they are compared with:
# links of the GPUs, every collective and the losses of every layout (ranks), step times of each layout (shares), what NCCL
# takes of the memory (nccl_memory), the end of a run whose rank dies while graphs replay (abort), speech on two ranks.
# Works in a bundle ('make bundle') and in the source tree after 'make'. Nine minutes at most; the most telling parts come
# first, every part has a time limit, and a part that fails does not stop the rest.
#   --only=A,B        only these parts, of: facts doctor ranks shares nccl_memory abort speech_ranks tests nccl step speech
#                     train peer attention gemm ops matrix throughput ncu memcheck racecheck predicted
#   --skip=A,B        without these parts
#   --out=DIR         the folder is made below DIR (default bench/results)
#   --archive=FILE    a .tar.gz of the folder, made anew after every part: what is there when a batch job is cut off
#   --device=DEVICE   cuda (default), or cpu to try the script
#   --ranks=2,4       so many ranks in the parts for several GPUs (default: 2, 4 and 8 as far as there are GPUs; all
#                     but 'ranks' take the largest); more than there are GPUs share them; none: the parts of one GPU
#   --minutes=N       for everything together (default 9)
#   --smoke           tiny shapes and few steps, nothing judged: does every part run?
#   --judge=FILE      only judge the losses in a metrics.jsonl, as the part 'train' does
# Training text: data/shakespeare/input.txt. Without it the losses cannot be judged; throughput uses random tokens.
# Exit code 0 when no part failed and every verdict was VALID.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")/.." && pwd)
only="" skip="" archive="" out=$here/bench/results device=cuda minutes=9 smoke=0 judged="" counts=""
all="facts doctor ranks shares nccl_memory abort speech_ranks tests nccl step speech train peer attention gemm ops matrix throughput ncu memcheck racecheck predicted"
of_several="facts,doctor,ranks,shares,nccl_memory,abort,speech_ranks,step,predicted"
for option in "$@"; do
  case $option in
    --only=*) only=${option#*=} ;;
    --skip=*) skip=${option#*=} ;;
    --out=*) out=${option#*=} ;;
    --archive=*) archive=$(realpath -m "${option#*=}") ;;
    --device=cpu | --device=cuda) device=${option#*=} ;;
    --ranks=*) counts=${option#*=} ;;
    --minutes=*) minutes=${option#*=} ;;
    --smoke) smoke=1 ;;
    --judge=*) judged=${option#*=} ;;
    -h | --help) sed -n '2,24s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "gpu_report: unknown option $option; --help lists them" >&2; exit 2 ;;
  esac
done
[[ $counts =~ ^([0-9]+(,[0-9]+)*|none)?$ ]] || { echo "gpu_report: --ranks=$counts is no list of numbers" >&2; exit 2; }
[[ $minutes =~ ^[0-9]+$ ]] || { echo "gpu_report: --minutes=$minutes is no number" >&2; exit 2; }
for name in ${only//,/ } ${skip//,/ }; do
  case " $all " in *" $name "*) ;; *) echo "gpu_report: no part is called '$name'; there are: $all" >&2; exit 2 ;; esac
done

# --- the known losses: this model, data and batch, measured before --------------------------------------------------
value() { sed -nE "s/.*\"step\":$2,.*\"$3\":([-+.0-9e]+).*/\1/p" "$1" | tail -n 1; }  # value FILE STEP KEY
judge() {  # judge FILE: a line for each number; fails unless all are within 0.06
  local step key wanted got bad=0 verdict
  while read -r step key wanted; do
    got=$(value "$1" "$step" "$key")
    verdict=INVALID
    if [ -n "$got" ] && awk -v a="$got" -v b="$wanted" 'BEGIN { d = a - b; exit !(d <= 0.06 + 1e-9 && d >= -0.06 - 1e-9) }'; then verdict=VALID; fi
    [ "$verdict" = VALID ] || bad=1
    printf '%-9s step %3d: %s, expected %s +- 0.06: %s\n' "$key" "$step" "${got:-not there}" "$wanted" "$verdict"
  done <<'END'
100 loss 2.45
200 loss 2.07
300 loss 1.49
300 val_loss 1.71
END
  return "$bad"
}
if [ -n "$judged" ]; then
  [ -r "$judged" ] || { echo "gpu_report: cannot read $judged" >&2; exit 2; }
  judge "$judged"
  exit
fi

# --- where things are -----------------------------------------------------------------------------------------------
cd "$here" || exit 1
if [ -x run ] && [ -x bin/choir ]; then run=("$here/run") programs=$here/bin
else run=() programs=${BUILD:-build}
fi
choir=("${run[@]}" "$programs/choir")
[ -x "$programs/choir" ] || { echo "gpu_report: $programs/choir is missing: run 'make', or unpack a bundle" >&2; exit 1; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
revision=$("${choir[@]}" --version | sed -nE 's/.*\((.*)\)$/\1/p')
[ -n "$revision" ] || { echo "gpu_report: choir does not start here" >&2; "${choir[@]}" --version; exit 1; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
[ "$device" = cuda ] || gpu=cpu
label=$(tr 'A-Z ' 'a-z_' <<<"${gpu:-no gpu}" | tr -cd 'a-z0-9_-')
folder=$out/$(date +%F)-$label-$revision
mkdir -p "$folder" || exit 1
folder=$(cd "$folder" && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/choir-report.XXXXXX") || exit 1
sampler=""
trap '[ -z "$sampler" ] || kill "$sampler" 2>/dev/null; rm -rf "$scratch"' EXIT
trap 'finish; exit 130' INT TERM
text=data/shakespeare/input.txt
deadline=$((SECONDS + 60 * minutes))
failed=0
rows=()

escaped() { printf '%s' "$1" | tr '\n\t' '  ' | sed 's/[\\"]/\\&/g'; }
record() {  # record PART RESULT SECONDS NOTE
  rows+=("$(printf '{"part": "%s", "result": "%s", "seconds": %d, "note": "%s"}' "$1" "$2" "$3" "$(escaped "$4")")")
  printf '%-11s %-8s %4d s  %s\n' "$1" "$2" "$3" "$4" | tee -a "$folder/summary.txt"
  case $2 in ok | skipped) ;; *) failed=1 ;; esac
}
finish() {  # the results so far: written after every part, so that an interruption keeps them
  local i
  {
    printf '{"date": "%s", "gpu": "%s", "revision": "%s", "smoke": %s,\n "parts": [\n' \
      "$(date -Iseconds)" "$(escaped "${gpu:-none}")" "$revision" "$([ $smoke = 1 ] && echo true || echo false)"
    for i in "${!rows[@]}"; do printf '  %s%s\n' "${rows[$i]}" "$([ "$i" = $((${#rows[@]} - 1)) ] || echo ,)"; done
    printf ' ]}\n'
  } >"$folder/summary.json"
  [ -z "$archive" ] || { tar -C "$folder/.." -czf "$archive.part" "$(basename "$folder")" && mv "$archive.part" "$archive"; } 2>/dev/null
}
wanted() {
  case ",$only," in ,, | *",$1,"*) ;; *) return 1 ;; esac
  case ",$skip," in *",$1,"*) return 1 ;; esac
}
skipped() { record "$1" skipped 0 "$2"; finish; }

# part NAME LIMIT NOTE COMMAND...: writes the output to NAME.txt (at most 256 KiB). NOTE is
# evaluated afterwards and gives the line to show.
part() {
  local name=$1 limit=$2 note=$3 left=$((deadline - SECONDS)) start=$SECONDS code=0 result=ok
  shift 3
  [ "$left" -gt 5 ] || { record "$name" no-time 0 "the $minutes minutes are over"; finish; return; }
  [ "$limit" -le "$left" ] || limit=$left
  { echo "\$ $*"; timeout --kill-after=5 "$limit" "$@" 2>&1 </dev/null; } >"$scratch/out"; code=$?
  head -c 262144 "$scratch/out" >"$folder/$name.txt"
  echo "[exit code $code after $((SECONDS - start)) s]" >>"$folder/$name.txt"
  case $code in 0) ;; 124 | 137) result=timeout ;; *) result=failed ;; esac
  [ "$result" != failed ] || [ -n "$(eval "$note" 2>/dev/null)" ] || note='grep -a -m 1 "^choir: " "$folder/$name.txt"'
  record "$name" "$result" $((SECONDS - start)) "$(eval "$note" 2>/dev/null | tail -n 1 | cut -c 1-160)"
  finish
}
last_line() { grep -av '^\[exit code' "$folder/$1.txt" | grep -a . | tail -n 1; }

# --- shapes -----------------------------------------------------------------------------------------------------------
deck=inputs/shakespeare_char.json
known=()  # random tokens have no vocabulary of their own
[ -r "$text" ] || known=(data.format=synthetic 'data.train=[]' model.vocab_size=65)
micro=64
small=() shape=() each=(--warmup 1 --seconds 3) tiny_speech=() seconds=0.1 preset=(--preset gpu) peer=(--seconds 10) steps=300 short=40 step_seconds=10 matrix_seconds=3
sharing=()  # if there are fewer GPUs than ranks
shared=(model.n_layer=4 model.n_head=8 model.n_embd=256 model.block_size=64)
ways=("" zero=1 zero=2 zero=3 tensor=2 pipeline=2 context=2)
if [ $smoke = 1 ]; then
  small=(model.n_layer=2 model.n_head=2 model.n_embd=64 model.block_size=64 train.precision=fp32)
  tiny_speech=(model.n_layer=1 model.n_embd=32 model.subsampling_channels=16 train.precision=fp32 --batch-duration 8 --longest 4)
  micro=4
  seconds=0.001 preset=(--preset cpu) peer=(--tiny) steps=20 short=10 step_seconds=1 matrix_seconds=0.2
  shared=(model.n_layer=2 model.n_head=4 model.n_embd=32 model.block_size=16) ways=(zero=3 tensor=2)
  shape=("${shared[@]}" train.precision=fp32) shape[0]=model.n_layer=4 each=(--warmup 0 --steps 2)
fi
single=(train.micro_batch_size="$micro" train.global_batch_size="$micro")
most_bytes=$((smoke ? 65536 : 256 << 20))
write_to() { echo --json "$folder/$1.json" --csv "$folder/$1.csv"; }

facts() {
  date -Iseconds
  "${choir[@]}" --version
  [ ! -e MANIFEST ] || head -n 3 MANIFEST
  uname -a
  lscpu | grep -E 'Model name|^CPU\(s\)|Socket|NUMA node\(s\)'
  nvidia-smi
  nvidia-smi topo -m
  nvidia-smi --query-gpu=name,uuid,driver_version,vbios_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit,ecc.mode.current,mig.mode.current,pcie.link.gen.max,pcie.link.width.max --format=csv
  [ ${#run[@]} = 0 ] || "${run[@]}" --libraries
  getconf GNU_LIBC_VERSION
  return 0
}
throughput_note() {
  sed -nE 's/.*"step":([0-9]+),.*"tps":([-+.0-9e]+),.*"mfu":([-+.0-9e]+),.*/\1 \2 \3/p' "$folder/throughput.jsonl" |
    awk '$1 > 5' | sort -g -k 2 | awk '{t[NR] = $2; m[NR] = $3}
      END {if (NR) printf "median of %d steps: %.0f tokens/s, MFU %.1f %% of the measured product\n", NR, t[int((NR + 1) / 2)], m[int((NR + 1) / 2)]; else print "no steps"}'
}
# train NAME STEPS OVERRIDE...: runs a training in a scratch directory; keeps its metrics.
train() {
  local name=$1 code
  shift
  "${choir[@]}" train "$deck" device="$device" "${small[@]}" run.dir="$scratch/$name" checkpoint.interval=0 eval.sample_tokens=0 "$@"
  code=$?
  [ ! -e "$scratch/$name/metrics.jsonl" ] || cp "$scratch/$name/metrics.jsonl" "$folder/$name.jsonl"
  return "$code"
}
known_losses() {
  train train train.max_steps="$steps" eval.interval=100 || return
  [ "$smoke" = 0 ] || { echo "not judged: smoke"; return 0; }
  judge "$folder/train.jsonl"
}
# The gain of each choice: one step is timed with each, and their rates are listed at the end. Rows
# "speech" are of a recogniser, the others of the GPT. The CSV has the ratio of each rate to that
# without the choice. The CPU is measured with the choices that it has.
matrix() {
  local name overrides code of word given line rate without=0 bad=0 table=""
  while read -r name overrides; do
    [ "$device" = cuda ] || case $name in base | gelu_tanh | vocab* | speech) ;; *) continue ;; esac
    echo "== $name: $overrides"
    given=() of=$deck  # a key is given once
    case $name in
      speech*) of=inputs/fastconformer_s.json given=(train.micro_batches=2 "${tiny_speech[@]}") ;;
      *) for word in "${small[@]}" "${single[@]}" "${known[@]}"; do
           [[ " $overrides" == *" ${word%%=*}="* ]] || given+=("$word")
         done ;;
    esac
    # shellcheck disable=SC2086
    "${choir[@]}" bench step "$of" device="$device" "${given[@]}" $overrides --no-ceilings \
      --seconds "$matrix_seconds" >"$scratch/one" 2>&1
    code=$?
    cat "$scratch/one"
    if [ "$code" = 0 ]; then
      line=$(grep -a -m 1 -E 'tokens/s|x real time' "$scratch/one")
      rate=$(grep -oE '^[0-9.]+' <<<"$line")
      case $name in base | speech) without=$rate ;; esac
      table+=$(printf '%-24s %s' "$name" "$line")$'\n'
      awk -v n="$name" -v r="$rate" -v w="$without" -v u="$([ "$of" = "$deck" ] && echo tokens/s || echo 'x real time')" \
        'BEGIN { if (w > 0) printf "matrix,%s,,,,,%s,%s,%.4f\n", n, r, u, r / w }' >>"$folder/matrix.csv"
    else table+=$(printf '%-24s exit code %s: %s' "$name" "$code" "$(grep -a -m 1 '^choir: ' "$scratch/one")")$'\n'; fi
    # Only cuDNN may be missing.
    case $code:$name in 0:* | 2:*cudnn*) ;; *) bad=1 ;; esac
  done <<END
base
attention_own model.attention=own
attention_cudnn model.attention=cudnn
cudnn_deterministic model.attention=cudnn model.attention_deterministic=true
queued train.cuda_graph=false
untimed_products train.time_products=false
gelu_tanh model.activation=gelu_tanh
gelu_in_product model.gelu_in_product=true
dependent_launch train.programmatic_dependent_launch=true
vocab_50257 model.vocab_size=50257
vocab_50304 model.vocab_size=50304
micro_16 train.micro_batch_size=16 train.global_batch_size=16
micro_32 train.micro_batch_size=32 train.global_batch_size=32
speech
speech_dependent_launch train.programmatic_dependent_launch=true
speech_in_one_kernel model.attention_in_one_kernel=true
END
  printf '%s' "$table"
  return "$bad"
}
# Several ranks: every collective, and the losses of every method of sharing the work, beside those
# of one rank.
ranked() {  # ranked NAME RANKS OVERRIDE...: eight steps of a small model; their losses
  local name=$1 count=$2
  shift 2
  "${run[@]}" mpiexec -n "$count" "$programs/choir" train "$deck" device="$device" data.format=synthetic 'data.train=[]' model.vocab_size=65 "${shared[@]}" \
    "${sharing[@]}" train.precision=fp32 train.micro_batch_size=1 train.global_batch_size=16 \
    train.max_steps=8 log.interval=1 eval.interval=0 eval.sample_tokens=0 checkpoint.interval=0 run.dir="$scratch/$name" "$@" \
    >"$scratch/$name.log" 2>&1 || { echo "$name: failed"; tail -n 5 "$scratch/$name.log"; return 1; }
  sed -nE 's/.*"step":([0-9]+),.*"loss":([-+.0-9e]+).*/\1 \2/p' "$scratch/$name/metrics.jsonl" >"$scratch/$name.losses"
}
# In fp32 the order of sums changes a loss by some 1e-8, a lost micro-batch by 2e-3
# (bench/README.md): 2^-14 lies between them.
apart() {  # apart NAME: the largest relative difference to one rank; fails above 2^-14
  paste -d' ' "$scratch/alone.losses" "$scratch/$1.losses" | awk '
    { d = $2 - $4; if (d < 0) d = -d; d /= $2; if (d > worst) worst = d; if ($1 != $3) worst = 1 }
    END { if (NR < 8) worst = 1; printf "%.2e", worst; exit !(worst <= 1 / 16384) }'
}
ranks() {
  local n words word layout name verdict bad=0 half table="" difference=""
  ranked alone 1 || return
  for n in $counts; do
    if "${run[@]}" mpiexec -n "$n" "$programs/choir" bench collectives device="$device" "${sharing[@]}" --max-bytes "$most_bytes" --csv "$folder/collectives-$n.csv" 2>&1; then
      verdict=VALID
      awk -F, -v n="$n" '$5 > most {most = $5; rows = ""} $5 == most {rows = rows sprintf("collectives,%s,,\"%d ranks\",%s,%s,%s,GB/s\n", $1, n, $7, $10, $12)}
        END {printf "%s", rows}' <(tail -n +2 "$folder/collectives-$n.csv") >>"$folder/collectives.csv"
    else verdict=INVALID bad=1; fi
    table+="$n ranks, collectives: $verdict"$'\n'
    half=$((n / 2))
    for words in "${ways[@]}" "tensor=2 pipeline=$half"; do
      [ "$n" -ge 4 ] || [ "$words" != "tensor=2 pipeline=$half" ] || continue
      layout=() name="on$n-${words//[ =]/-}" verdict=VALID
      for word in $words; do layout+=("parallel.$word"); done
      { ranked "$name" "$n" "${layout[@]}" && difference=$(apart "$name"); } || verdict=INVALID bad=1
      table+="$n ranks, ${words:-zero=0}: losses ${difference:-not there} apart from one rank's: $verdict"$'\n'
      difference=""
    done
  done
  printf '%s' "$table"
  return "$bad"
}
# Rates of a step of the deck on all GPUs: each layout with its work queued and recorded, then what registered memory and
# free multiprocessors are worth where collectives run beside products.
on_all() {  # on_all ARGUMENT...: choir on $most ranks; without input, which is the list of a loop
  "${run[@]}" mpiexec -n "$most" "$programs/choir" "$@" </dev/null
}
shares() {
  local name words word given code bad=0 table=""
  while read -r name words; do
    [ -n "$name" ] || continue
    echo "== $name: $words"
    given=() code=0
    for word in "${shape[@]}" "${known[@]}" "${sharing[@]}"; do
      [[ " $words" == *" ${word%%=*}="* ]] || given+=("$word")
    done
    # shellcheck disable=SC2086
    on_all bench step "$deck" device="$device" "${given[@]}" train.micro_batch_size="$micro" train.global_batch_size=$((4 * micro * most)) $words \
      --no-ceilings "${each[@]}" >"$scratch/one" 2>&1 || code=$?
    cat "$scratch/one"
    if [ "$code" = 0 ]; then
      table+=$(printf '%-26s %s' "$name" "$(grep -a tokens/s "$scratch/one" | head -n 1)")$'\n'
      grep -a -m 1 -oE '^[0-9.]+ tokens/s' "$scratch/one" | sed -E "s|(.*) tokens/s|shares,$name,,\"$most ranks\",,,\1,tokens/s|" >>"$folder/shares.csv"
    else table+=$(printf '%-26s exit code %s: %s' "$name" "$code" "$(grep -a -m 1 'choir: ' "$scratch/one")")$'\n' bad=1; fi
  done <<END
dp_queued train.cuda_graph=false
dp
zero1 parallel.zero=1
zero3_queued parallel.zero=3 train.cuda_graph=false
zero3 parallel.zero=3
tensor_queued parallel.tensor=$pair parallel.sequence=true train.cuda_graph=false
tensor parallel.tensor=$pair parallel.sequence=true
tensor_unregistered parallel.tensor=$pair parallel.sequence=true parallel.register_memory=false
$([ "$device" = cpu ] || printf 'tensor_free_sms_%s parallel.tensor=%s parallel.sequence=true parallel.free_sms=%s\n' 8 "$pair" 8 16 "$pair" 16 32 "$pair" 32)
pipeline_queued parallel.pipeline=2 train.cuda_graph=false
pipeline parallel.pipeline=2
interleaved parallel.pipeline=2 parallel.schedule=interleaved parallel.virtual_stages=2
END
  printf '%s' "$table"
  return "$bad"
}
# Memory that NCCL takes: the most of a GPU that is in use during steps over NCCL, less the same with collectives that are
# staged through the host, beside the estimate of `choir plan`. For one communicator (dp), two (zero1) and three or more.
used_memory() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | sort -n | tail -n 1; }
in_steps() {  # in_steps OVERRIDE...: MiB of the fullest GPU while steps run; 0 where nobody can tell
  local pid now most_used=0
  on_all bench step "$deck" device="$device" "${shape[@]}" "${known[@]}" "${sharing[@]}" train.micro_batch_size="$micro" \
    train.global_batch_size=$((4 * micro * most)) "$@" --no-ceilings "${each[@]}" >"$scratch/one" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    now=$(used_memory)
    [ "${now:-0}" -le "$most_used" ] || most_used=$now
    sleep 0.2
  done
  wait "$pid" || { tail -n 3 "$scratch/one" >&2; return 1; }
  echo "$most_used"
}
nccl_memory() {
  local name words before staged over estimate bad=0
  before=$(used_memory)
  echo "before: ${before:-not readable}"
  while read -r name words; do
    over=transport=auto
    [ "$device" = cpu ] || [ "${#sharing[@]}" -gt 0 ] || over=transport=nccl
    # shellcheck disable=SC2086
    { staged=$(in_steps $words parallel.transport="$([ "$device" = cpu ] && echo mpi || echo staged)") && over=$(in_steps $words parallel."$over"); } || { bad=1; continue; }
    # shellcheck disable=SC2086
    estimate=$("${choir[@]}" plan "$deck" "${shape[@]}" "${known[@]}" train.micro_batch_size="$micro" train.global_batch_size=$((4 * micro * most)) \
      $words parallel.data=auto --ranks "$most" --target h100 2>/dev/null | sed -nE 's/^ *NCCL, about +([0-9.]+).*/\1/p' | head -n 1)
    echo "$name: MiB in use with staged collectives $staged, with NCCL $over: NCCL took $((over - staged)), of estimated ${estimate:-?}"
  done <<END
dp
zero1 parallel.zero=1
tensor parallel.tensor=$pair
pipeline parallel.pipeline=2
END
  return "$bad"
}
# A rank is killed while the others replay graphs: the run must end in time, and say why.
abort() {
  local code=0 from=$SECONDS
  on_all train "$deck" device="$device" data.format=synthetic 'data.train=[]' model.vocab_size=65 "${shared[@]}" "${sharing[@]}" train.precision=fp32 \
    train.micro_batch_size=1 train.global_batch_size=16 train.max_steps=1000 log.interval=1 eval.interval=0 eval.sample_tokens=0 checkpoint.interval=0 \
    run.dir="$scratch/abort" fault.enable=true fault.kill_rank=1 fault.kill_step=20 parallel.timeout=20 >"$scratch/one" 2>&1 || code=$?
  tail -n 12 "$scratch/one"
  echo "exit code $code after $((SECONDS - from)) s"
  [ "$code" != 0 ] && [ "$code" != 124 ] && [ $((SECONDS - from)) -lt 35 ]
}
# A recogniser on two data ranks: steps whose shapes agree are replayed.
speech_ranks() {
  local name words code=0 table="" most=2
  while read -r name words; do
    echo "== $name: $words"
    # shellcheck disable=SC2086
    on_all bench step inputs/fastconformer_s.json device="$device" train.micro_batches=4 "${sharing[@]}" "${tiny_speech[@]}" $words \
      --no-ceilings "${each[@]}" >"$scratch/one" 2>&1 || code=1
    cat "$scratch/one"
    table+=$(printf '%-26s %s' "$name" "$(grep -a -m 1 -E 'x real time|choir: ' "$scratch/one")")$'\n'
  done <<END
queued train.cuda_graph=false
recorded
END
  printf '%s' "$table"
  return "$code"
}
# Time of a step by kernel, the longest first.
profiles() {
  local name words
  while read -r name words; do
    echo "== $name: $words"
    # shellcheck disable=SC2086
    "${run[@]}" "$ncu" --clock-control none --csv --launch-count 4000 --metrics gpu__time_duration.sum "$programs/choir" bench step $words \
      device=cuda train.cuda_graph=false --steps 1 --no-ceilings >"$scratch/ncu" 2>&1 </dev/null
    kernel_times <"$scratch/ncu" || { tail -n 3 "$scratch/ncu"; return 1; }
  done <<END
gpt $deck ${small[*]} ${single[*]} ${known[*]}
speech inputs/fastconformer_l.json train.micro_batches=1 --batch-duration 480 --shortest 8 --longest 16
END
}
tool_of_cuda() {  # tool_of_cuda NAME: prints its path
  local tool
  for tool in "$(command -v "$1")" "${CUDA_HOME:-}/bin/$1" /usr/local/cuda*/bin/"$1"; do
    if [ -n "$tool" ] && [ -x "$tool" ]; then echo "$tool"; return 0; fi
  done
  return 1
}
export -f judge value train known_losses facts matrix ranked apart ranks on_all shares used_memory in_steps nccl_memory abort speech_ranks profiles
export folder scratch device deck steps smoke matrix_seconds

# --- the parts, most telling first --------------------------------------------------------------------------------------
# Functions are exported and run by a child process, so that the time limit applies to their
# processes; arrays are passed in its text.
child() { declare -p choir run programs small single known shared ways sharing tiny_speech micro shape each; printf '%s\n' "$@"; }

cards=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
if [ -z "$counts" ] && [ "$device" = cuda ]; then
  for n in 2 4 8; do [ "$n" -gt "$cards" ] || counts+="${counts:+,}$n"; done
fi
[ "$counts" != none ] || counts=""
# In a trial of the script every part is tried.
[ -z "$counts" ] || [ -n "$only" ] || [ $smoke = 1 ] || only=$of_several

echo "report to $folder"
: >"$folder/summary.txt"
if [ "$device" = cuda ] && command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=timestamp,index,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu,clocks_throttle_reasons.active \
    --format=csv -lms 200 >"$folder/clocks.csv" 2>&1 &
  sampler=$!
fi
if wanted facts; then part facts 20 'echo "${gpu:-no GPU}"' bash -c "$(child facts)"; fi
if wanted doctor; then part doctor 30 'last_line doctor' "${choir[@]}" doctor --folder "$scratch"; fi
# The functions for several GPUs are called with the numbers of ranks, the largest, and two or four for the tensor axis.
several() { child "counts='${counts//,/ }' most=$most pair=$pair most_bytes=$most_bytes" "$@"; }
if [ -z "$counts" ]; then
  for name in ranks shares nccl_memory abort speech_ranks; do
    if wanted $name; then skipped $name "fewer than two GPUs"; fi
  done
else
  most=${counts##*,} pair=2
  for n in ${counts//,/ }; do
    [ "$n" -le "$most" ] || most=$n
    if [ "$device" = cuda ] && [ "$n" -gt "$cards" ]; then sharing=(parallel.share_device=true); fi
  done
  [ "$most" -lt 4 ] || pair=4
  if wanted ranks; then part ranks 130 'grep -a -c VALID "$folder/ranks.txt" | sed "s/$/ verdicts/"' bash -c "$(several ranks)"; fi
  if wanted shares; then part shares 120 'grep -a -c "^[a-z][a-z_0-9]* .*tokens/s" "$folder/shares.txt" | sed "s/$/ rates/"' bash -c "$(several shares)"; fi
  if wanted nccl_memory; then part nccl_memory 60 'grep -a -c "NCCL took" "$folder/nccl_memory.txt" | sed "s/$/ layouts/"' bash -c "$(several nccl_memory)"; fi
  if wanted abort; then part abort 40 'grep -a "^exit code" "$folder/abort.txt"' bash -c "$(several abort)"; fi
  if wanted speech_ranks; then part speech_ranks 40 'last_line speech_ranks' bash -c "$(several speech_ranks)"; fi
fi
if wanted tests; then
  if [ "$device" = cuda ] && [ -x "$programs/test_cuda" ]; then
    WORKERS=8 part tests 120 'last_line tests' "${run[@]}" test/run_shards.sh "$programs/test_cuda"
  else skipped tests "no test_cuda in $programs, or not on a GPU"; fi
fi
if wanted nccl; then  # with one rank: also that it can be aborted while a graph lives
  if [ "$device" = cuda ] && [ -x "$programs/test_mpi" ]; then
    part nccl 40 'last_line nccl' "${run[@]}" "$programs/test_mpi" --gtest_brief=1 --gtest_filter='*nccl*:*Nccl*'
  else skipped nccl "no test_mpi in $programs, or not on a GPU"; fi
fi
if wanted step; then
  # shellcheck disable=SC2046
  part step 60 'grep -a tokens/s "$folder/step.txt"' "${choir[@]}" bench step $deck device="$device" "${small[@]}" "${single[@]}" \
    "${known[@]}" --seconds $step_seconds $(write_to step)
fi
if wanted speech; then  # synthetic utterances
  # shellcheck disable=SC2046
  part speech 75 'grep -a "x real time" "$folder/speech.txt"' "${choir[@]}" bench step inputs/fastconformer_s.json device="$device" \
    train.micro_batches=2 "${tiny_speech[@]}" --seconds $step_seconds $(write_to speech)
fi
if wanted train; then
  if [ -r "$text" ]; then part train 180 'grep -a -E "VALID|not judged" "$folder/train.txt" | sed -E "s/.*: //" | paste -sd" "' bash -c "$(child known_losses)"
  else skipped train "no $text: the losses of random tokens say nothing"; fi
fi
if wanted peer; then
  if python3 -c 'import torch' 2>/dev/null; then
    peak=$(sed -nE 's/.*"nominal_flops":([.0-9e+]+).*/\1/p' "$folder/step.json" 2>/dev/null)
    part peer 120 'grep -a -o "\"tokens_per_second\": [0-9]*" "$folder/peer.txt"' python3 bench/peer_torch.py --deck $deck --device "$device" --micro-batch $micro \
      --peak-flops "${peak:-0}" "${peer[@]}"
    grep -a '^{' "$folder/peer.txt" >"$folder/peer.json"
  else skipped peer "python3 here has no PyTorch"; fi
fi
for name in attention gemm ops; do
  wanted $name || continue
  what=("${preset[@]}")
  if [ $name = gemm ]; then what=("$deck" "${small[@]}" train.micro_batch_size="$micro"); fi  # and squares, on a GPU
  if [ $name = ops ] && [ $device = cuda ]; then what+=(--type bf16); fi  # all three types take more than 90 s
  # shellcheck disable=SC2046
  part $name 90 "last_line $name" "${choir[@]}" bench $name device="$device" "${what[@]}" --seconds $seconds $(write_to $name)
done
if wanted matrix; then part matrix 160 'wc -l <"$folder/matrix.csv" | sed "s/$/ rates/"' bash -c "$(child matrix)"; fi
if wanted throughput; then
  part throughput 60 throughput_note bash -c "$(child); train throughput train.max_steps=$short eval.interval=0 log.interval=1 ${single[*]} ${known[*]}"
fi
if wanted ncu; then
  if ! found=$(tool_of_cuda ncu); then skipped ncu "no ncu"
  elif [ "$device" = cuda ]; then
    part ncu 100 'grep -a " kernels, " "$folder/ncu.txt" | paste -sd";"' bash -c ". '$here/bench/lib/kernel_times.sh'; $(child "ncu=$found" profiles)"
  else skipped ncu "not on a GPU"; fi
fi
for tool in memcheck racecheck; do
  wanted $tool || continue
  if ! found=$(tool_of_cuda compute-sanitizer); then skipped $tool "no compute-sanitizer"
  elif [ "$device" = cuda ] && [ -x "$programs/test_cuda" ]; then
    part $tool 100 "grep -a SUMMARY '$folder/$tool.txt'" "${run[@]}" "$found" --tool $tool --error-exitcode 9 "$programs/test_cuda"
  else skipped $tool "no test_cuda in $programs, or not on a GPU"; fi
done
if wanted predicted; then
  if [ -e "$folder/attention.csv" ] || [ -e "$folder/gemm.csv" ] || [ -e "$folder/ops.csv" ] || [ -e "$folder/shares.csv" ] || [ -e "$folder/matrix.csv" ]; then
    part predicted 20 'grep -a -c -v "not there" "$folder/predicted.txt" | sed "s/$/ lines/"' \
      bash -c ". '$here/bench/lib/gpu_expected.sh'; gpu_expected '$folder'"
    grep -av -e '^\$' -e '^\[exit' "$folder/predicted.txt"
  else skipped predicted "nothing was measured"; fi
fi
finish
echo "left in $folder ($(du -sh "$folder" | cut -f1)): $([ $failed = 0 ] && echo VALID || echo INVALID)"
exit $failed
