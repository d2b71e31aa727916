#!/usr/bin/env bash
# bench/gpu_report.sh without a GPU: its verdicts, its files, and that it continues after a failed
# part.
. "$(dirname "$0")/lib/common.sh"
report() {  # report ARGUMENT...
  command="gpu_report.sh $*" code=0
  BUILD=$build timeout $((limit * patience)) "$root/bench/gpu_report.sh" "$@" >out 2>&1 </dev/null || code=$?
}
metrics() {  # metrics LOSS100 LOSS200 LOSS300 VALIDATION
  printf '{"step":10,"loss":3.1,"lr":1}\n{"step":100,"loss":%s,"lr":1}\n{"step":200,"loss":%s,"lr":1}\n{"step":300,"loss":%s,"lr":1,"val_loss":%s}\n' "$@"
}
metrics 2.46 2.01 1.55 1.7 >good
report --judge=good
expect "losses within 0.06 are valid" 0 "step 100: 2.46, expected 2.45 +- 0.06: VALID" "val_loss  step 300: 1.7,"
metrics 2.46 2.01 1.56 1.7 >bad
report --judge=bad
expect "one outside is not, and is named" 1 "step 300: 1.56, expected 1.49 +- 0.06: INVALID" "step 200: 2.01, expected 2.07 +- 0.06: VALID"
head -n 3 good >short
report --judge=short
expect "one that is not there is not" 1 "step 300: not there"
metrics nan 2.01 1.5 1.7 >nan
report --judge=nan
expect "nor is what is no number" 1 "step 100: not there"

report --only=facts,nothing
expect "an unknown part is refused" 2 "no part is called 'nothing'"
report --gpu
expect "an unknown option is refused" 2 "unknown option --gpu"
report --help
expect "the help names the parts" 0 "racecheck" "--only=A,B"

# One part works and one fails: there is no GPU program here, so the step needs a device that does
# not exist.
report --smoke --device=cpu --only=facts,step,speech,tests,throughput --out="$work/results"
expect "a report without a GPU" 0 "step        ok" "speech      ok" "x real time" "tests       skipped" "throughput  ok" "VALID"
folder=$(echo "$work"/results/*)
check "one folder, named by date, device and revision" matches <(echo "$folder") '/[0-9]{4}-[0-9]{2}-[0-9]{2}-cpu-[^/]+$'
for file in summary.json summary.txt facts.txt step.txt step.json step.csv speech.json throughput.jsonl; do
  check "it has $file" test -s "$folder/$file"
done
check "the step is valid and counted" matches "$folder/step.csv" ',VALID,'
check "the summary names every part" matches "$folder/summary.json" '"part": "tests", "result": "skipped"'
report --smoke --device=cpu --only=matrix,ranks,predicted --ranks=2 --out="$work/ways" --archive="$work/ways.tar.gz"
expect "choices and several ranks" 0 "matrix      ok" "ranks       ok" "predicted   ok" "VALID"
folder=$(echo "$work"/ways/*)
check "an archive has what the folder has" eval 'tar -tzf "$work/ways.tar.gz" | grep -q "/matrix.txt$"'
check "every choice of a CPU has a rate" test "$(grep -cE '^(base|gelu_tanh|vocab_50257|vocab_50304) .*tokens/s' "$folder/matrix.txt")" = 4
check "... and a ratio to that without the choice" test "$(grep -cE '^matrix,(base|speech),,,,,[0-9.]+,[a-z/ ]+,1\.0000$' "$folder/matrix.csv")" = 2
for words in "collectives: VALID" "zero=3: losses [0-9.e+-]+ apart from one rank's: VALID" "tensor=2: .*: VALID"; do
  check "2 ranks, $words" matches "$folder/ranks.txt" "^2 ranks, $words"
done
report --ranks=two
expect "ranks that are no number" 2 "is no list of numbers"
# The parts for several GPUs; those that run many steps only in make test-long.
report --smoke --device=cpu --only=abort,speech_ranks --ranks=2 --out="$work/several"
expect "the end of a run whose rank dies, and speech on two ranks" 0 "abort       ok" "exit code 137" "speech_ranks ok" "VALID"
folder=$(echo "$work"/several/*)
check "... which says why it ended" matches "$folder/abort.txt" 'rank 1 .* has died|rank 1 is killed'
for name in queued recorded; do
  check "... and has the rate of steps that are $name" matches "$folder/speech_ranks.txt" "^$name +[0-9]+ x real time"
done
report --smoke --device=cpu --only=shares,nccl_memory --ranks=none --out="$work/one"
expect "no part for several GPUs where one is asked for" 0 "shares      skipped" "nccl_memory skipped"
if exhaustive; then
  report --smoke --device=cpu --only=shares,nccl_memory --ranks=2 --out="$work/shares"
  expect "rates of layouts, and the memory of NCCL" 0 "shares      ok" "nccl_memory ok" "VALID"
  folder=$(echo "$work"/shares/*)
  check "... of every layout" test "$(grep -cE '^[a-z][a-z_0-9]* .*tokens/s' "$folder/shares.txt")" = 11
  check "... with estimates of the plan" test "$(grep -cE 'of estimated [0-9.]+$' "$folder/nccl_memory.txt")" = 4
fi

# Expected figures beside those of a report: ratios to the middle of the expected range, and missing
# figures.
mkdir measured
cat >measured/attention.csv <<'END'
bench,name,variant,shape,dtype,us,rate,unit,fraction,error,allowed,verdict
attention,attention forward,own,"B 64 H 12/12 T 1024 D 64 causal",bf16,1,300.000,TFLOP/s,0.3,0,1,VALID
attention,attention forward,own,"B 64 H 12/12 T 1024 D 64 full",bf16,1,500.000,TFLOP/s,0.5,0,1,VALID
attention,attention forward,cudnn,"B 64 H 12/12 T 1024 D 64 causal",bf16,1,400.000,TFLOP/s,0.4,0,1,VALID
END
printf 'ops,cross_entropy,,"[65536, 50304]",bf16,1,2500,GB/s,0.66,0,1,VALID\n' >measured/ops.csv
bash -c ". '$root/bench/lib/gpu_expected.sh'; gpu_expected measured" >out 2>&1
check "own attention, by its own row" matches out '^attention forward own  +.*D 64 causal +237 to 262 TFLOP/s +300\.0 +1\.20$'
check "a fraction of the ceiling" matches out '^cross_entropy .*95 to 105 % +66\.0 +0\.66$'
check "what is not there is named" matches out '^layernorm_backward .*not there'
check "a figure that no card has shown is marked" matches out '^all_reduce .*not there .*predicted$'
printf 'collectives,all_reduce,,"8 ranks",float,1,420,GB/s\nshares,dp,,"2 ranks",,,1450000,tokens/s\n' | tee measured/collectives.csv >measured/shares.csv
bash -c ". '$root/bench/lib/gpu_expected.sh'; gpu_expected measured" >out 2>&1
check "bandwidth of several GPUs" matches out '^all_reduce +8 ranks +360 to 480 GB/s +420\.0 +1\.00  predicted$'
printf 'matrix,speech_dependent_launch,,,,,17000,x real time,1.0600\n' >measured/matrix.csv
bash -c ". '$root/bench/lib/gpu_expected.sh'; gpu_expected measured" >>out 2>&1
check "the gain of a choice" matches out '^speech_dependent_launch .*103 to 109 % +106\.0 +1\.00  predicted$'
check "rates of several GPUs" matches out '^dp +2 ranks +1370000 to 1540000 tokens/s +1450000\.0 +1\.00  predicted$'

# The last whole step of a profile: neither earlier work nor the beginning of the next step is
# included.
{
  echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
  n=0
  for kernel in warm begin add add begin mul add begin add; do
    printf '"%d","void choir::%s%s<float, 8>(int, const T1 *)","gpu__time_duration.sum","ns","%s"\n' $n $kernel \
      "$([ $kernel = begin ] && echo _step_kernel)" "1,0$((n += 1))0"
  done
} >profile.csv
bash -c ". '$root/bench/lib/kernel_times.sh'; kernel_times 2 <profile.csv" >out 2>&1
check "a step has its kernels" matches out '^3 kernels, 0\.003 ms$'
check "by their names without parameters" matches out '^ +0\.001 ms +33\.6 % +1 x +1\.07 us +choir::add<float, 8>$'
check "the longest, and no more" test "$(wc -l <out)" = 3
bash -c ". '$root/bench/lib/kernel_times.sh'; kernel_times" <out >none 2>&1
check "no profile" matches none '^no whole step$'

if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
  report --smoke --device=cuda --only=step,facts --out="$work/failing"
  expect "a part that fails is recorded, and the report goes on" 1 "step        failed" "facts       ok" "INVALID"
else skip "a part that fails is recorded" "it would not fail, because there is a GPU"; fi
