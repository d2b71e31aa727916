#!/usr/bin/env bash
# nodes.sh [--hosts N] [--ranks N] [--rate 1gbit] [--build DIR] [--repeats N]: what collectives of a group over N hosts (2) of
# so many ranks (2) take, beside what the link between them needs, which is 2 (n-1)/n of the bytes of an all-reduce and
# half of that for the others. The hosts are namespaces of this machine (test/run/lib/nodes.sh), so that it takes root,
# and cores with nothing else to do. Two minutes.
# shellcheck disable=SC2034,SC2154  # variables of nodes.sh and common.sh
hosts=2 ranks=2 rate=1gbit repeats=5 build=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build
asked=("$@")
while [ $# -gt 1 ]; do
  case $1 in
    --hosts) hosts=$2 ;;
    --ranks) ranks=$2 ;;
    --rate) rate=$2 ;;
    --repeats) repeats=$2 ;;
    --build) build=$(cd "$2" && pwd) || exit 2 ;;
    *) break ;;
  esac
  shift 2
done
[ $# -eq 0 ] || { sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
# shellcheck source=test/run/lib/nodes.sh
. "$(dirname "${BASH_SOURCE[0]}")/../test/run/lib/nodes.sh"
nodes_enclose "$0" "${asked[@]}"
# shellcheck source=test/run/lib/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../test/run/lib/common.sh" "$build"
trap 'nodes_down; cd / && rm -rf "$work"' EXIT
[ -z "$nodes_why" ] || { echo "INVALID: $nodes_why"; exit 1; }
nodes_up "$hosts" "$rate" || { echo "INVALID: no hosts"; exit 1; }
places=""
for ((i = 0; i < hosts; i++)); do places+=${places:+,}node$i:$ranks; done
bits=${rate%gbit}
echo "$hosts hosts of $ranks ranks, $rate, $(uptime | sed 's/.*load/load/')"
echo "collective      transport      MiB       ms    link   ratio"
limit=170
for bytes in $((1 << 20)) $((16 << 20)); do
  on_nodes "$places" bench collectives --min-bytes "$bytes" --max-bytes "$bytes" --repeats "$repeats" --csv rows.csv
  [ "$code" = 0 ] || { tail -n 20 out; echo "INVALID: exit code $code"; exit 1; }
  awk -F, -v hosts="$hosts" -v bits="$bits" '
    NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    $at["name"] ~ /^(all_reduce|reduce_scatter|all_gather)$/ {
      bytes = $at["bytes"]  # rounded to what ranks can share
      link = ($at["name"] == "all_reduce" ? 2 : 1) * (hosts - 1) / hosts * bytes * 8 / (bits * 1e9)
      printf "%-15s %-10s %7.0f %8.1f %7.1f %7.2f\n", $at["name"], $at["transport"], bytes / 1048576,
        $at["us"] / 1e3, 1e3 * link, $at["us"] / 1e6 / link
    }' rows.csv
done
