#!/usr/bin/env bash
# plots.sh CSV PREFIX: the pictures of a sweep, PREFIX-SWEEP.png and .svg for each of weak, strong and batch that has valid
# rows: throughput with the ideal line, efficiency, phases of a step, exposed communication. With gnuplot (`make deps`);
# without it the CSV is all there is, and nothing fails.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# = 2 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
[ -r "$1" ] || { echo "plots.sh: cannot read '$1'" >&2; exit 2; }
command -v gnuplot >/dev/null || { echo "no plots: gnuplot is missing (make deps installs it)"; exit 0; }
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT

# Blocks of gnuplot: one for each layout, in columns. Quoted fields are behind the columns used
# here.
columns() {  # columns SWEEP
  awk -F, -v sweep="$1" '
    NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next }
    $at["sweep"] == sweep && $at["valid"] == "VALID" {
      layout = $at["layout"]
      if (!(layout in rows)) order[++n] = layout
      x = sweep == "batch" ? $at["global_batch"] : $at["ranks"]
      med = $at["step_ms_med"]; rate = $at["tok_s"]
      comm = $at["comm_pct"] == "" ? "NaN" : $at["comm_pct"]
      name = layout ($at["oversubscribed"] == 1 ? "*" : "")
      rows[layout] = rows[layout] sprintf("%s %s %s %s %s %s %s %s %s %s %s %s %s %s %s %s %s \"%s %s\"\n", x, rate,
        rate * med / $at["step_ms_p90"], rate * med / $at["step_ms_p10"], 100 * $at["efficiency"],
        $at["data_ms"], $at["forward_ms"], $at["backward_ms"], $at["comm_ms"], $at["optimizer_ms"], $at["other_ms"],
        comm, $at["tp_pct"], $at["cp_pct"], $at["dp_pct"], $at["pp_pct"], $at["oversubscribed"], x, name)
    }
    END { for (k = 1; k <= n; ++k) printf "# %s\n%s\n\n", order[k], rows[order[k]] }' "$csv"
}
csv=$1 speech=0
! grep -q 's/h of audio' "$csv" || speech=1
for sweep in weak strong batch; do
  columns "$sweep" >"$data/rows"
  grep -q '^[0-9]' "$data/rows" || continue
  sed -n 's/^# //p' "$data/rows" | tr '\n' ' ' >"$data/layouts"
  grep '^[0-9]' "$data/rows" | sort -n -k1,1 -s >"$data/all"
  for terminal in png svg; do
    gnuplot -e "speech=$speech; sweep='$sweep'; folder='$data'; terminal='$terminal'; out='$2-$sweep.$terminal'; layouts='$(cat "$data/layouts")'" \
      "$here/lib/scaling.gp"
  done
  echo "plots in $2-$sweep.png and .svg"
done
