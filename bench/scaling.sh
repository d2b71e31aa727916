#!/usr/bin/env bash
# scaling.sh [--weak] [--strong] [--batch] [OPTION ...] DECK [key.path=value ...]
# Sweeps of the training step over ranks, layouts and batches inside one allocation (PBS, SLURM, or this machine). Each
# point is `choir bench step` in a fresh process: warm-up dropped, three repeats in turn, one run without communication;
# and is valid only where its first losses and gradients are those of one rank with the same global batch, as close as
# two more runs of that rank, with the last places of its weights moved, show that rounding can explain.
#   --weak --strong --batch  the batch grows with the ranks; one global batch; one number of ranks (default: all three)
#   --ranks "1 2 4"    default: 1, 2, 4 ... up to what the allocation has
#   --layouts "dp zero1 zero2 zero3 tp2 tp4 pp2 cp2 ..."   default: dp. zeroN, tpN, ppN, cpN can be joined: tp2-pp2
#   --micro "1 2 4 8"  micro-batches of the batch sweep; --batch-ranks "1 2" its ranks (default: the fewest)
#   --global N         global batch of the strong sweep (default: of the deck, times the most ranks if it has none)
#   --repeats 3 --seconds 2 --warmup 1    of each point; --no-silent leaves out the runs without communication
#   --noise N          pairs of batches for the gradient noise scale (0: not measured)
#   --run DIR --target-loss X   a training run that reached X: time and cost of other batches in the advice
#   --name NAME        of the files DATE-scaling-NAME* in --results DIR (default runs/scaling; bench/results is for
#                      numbers that are kept); --no-plots
#   --dry-run          lists the rows, and starts nothing
#   --fresh            begin again; otherwise a sweep that was interrupted goes on where it stood
#   --all-cpu          the sweeps of bench/results on a CPU host: inputs/bench_a.json, in five minutes on two cores
# train.micro_batch_size=M is taken as --micro M, and as the micro-batch of the other sweeps; train.global_batch_size=N as
# --global N.
# Exit code 0: a row is valid; 1: none is; 2: the command line; 6: the results cannot be written; 130, 143: interrupted.
# As a batch job: jobs/scaling.pbs, jobs/scaling.slurm. CHOIR=build/choir names the program.
set -u -o pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../jobs/launch.sh
. "$here/jobs/launch.sh"
# shellcheck source=lib/sweep.sh
. "$here/bench/lib/sweep.sh"
exec 4>&1
trap 'stop_sweep 130' INT
trap 'stop_sweep 143' TERM

parse_sweep "$@"
prepare_sweep
if [ -n "$dry" ]; then show_points; exit; fi
while read -r global ranks micro <&3; do reference "$global" "$ranks" "$micro" || exit; done 3< <(references)
for repeat in $(seq "$repeats"); do
  while read -r kind layout ranks micro global <&3; do
    measure "$kind" "$layout" "$ranks" "$micro" "$global" "$repeat"
  done 3<"$work/points"
done
if [ "$silent" = yes ]; then
  while read -r kind layout ranks micro global <&3; do
    [ "$ranks" = 1 ] || measure "$kind" "$layout" "$ranks" "$micro" "$global" silent
  done 3<"$work/points"
fi
[ "$noise" = 0 ] || measure_noise
say ""
report_sweep
