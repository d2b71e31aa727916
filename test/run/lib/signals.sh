# shellcheck shell=bash
# Sourced after common.sh by the tests of signals: a training in fp32 whose products oneDNN computes
# with code that it generates for AVX2, with its stack pointer inside a buffer of the heap (from 253
# columns on), and fast senders.
export ONEDNN_MAX_CPU_ISA=AVX2
wide=(train.precision=fp32 model.n_embd=128 model.n_layer=1 optimizer.decay_steps=20 eval.interval=0
  checkpoint.interval=1000000 log.interval=1)

# send MICROSECONDS COUNT SIGNAL,... PID...: sends each of the signals to each of the processes,
# COUNT times or until none lives.
send() {
  perl -e '
    my ($pause, $count, $names, @pids) = @ARGV;
    my @names = split /,/, $names;
    for (my $i = 0; $i < $count; ++$i) {
      my $alive = 0;
      for my $name (@names) { $alive += kill $name, @pids; }
      last if $alive == 0;
      select(undef, undef, undef, $pause * 1e-6);
    }' "$@"
}
forever=1000000000

# The processes of the run that start() began: the process itself, or the ranks of its launcher.
ranks_of() {
  local ranks
  ranks=$(pgrep -P "$1" -x choir)
  echo "${ranks:-$1}"
}

# is_continued RUN STRAIGHT STEPS: the run is continued to its end, and has the losses and tensors of STRAIGHT.
is_continued() {
  train "$ranks" "$1" "${wide[@]}" train.max_steps="$3"
  [ "$code" = 0 ] && [ "$(losses "$1" | sort -n -u)" = "$(losses "$2" | sort -n -u)" ] && same_tensors "$2" "$1"
}

# Masks of the threads of a process: the number of threads that block no signal of the last group,
# and of those that block all except crashes (SEGV, BUS, FPE, ILL, TRAP, SYS, ABRT), SIGPROF, and
# the signals that cannot be blocked.
masks_of() {  # masks_of PID
  cat /proc/"$1"/task/*/status 2>/dev/null | perl -ne '
    next unless /^SigBlk:\s*([0-9a-f]+)/;
    my $mask = hex $1;
    my $all = 0xffffffffffffffff;
    $all &= ~(1 << ($_ - 1)) for 4, 5, 6, 7, 8, 9, 11, 19, 27, 31, 32, 33;
    $mask == 0 ? ++$open : $mask == $all ? ++$closed : ++$other;
    END { printf "%d open, %d closed, %d other\n", $open, $closed, $other }'
}
