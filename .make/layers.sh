#!/usr/bin/env bash
# A file includes only its own layer or lower ones, and there is no cycle: between modules, or
# between the folders of one.
set -u
# Model families are above the modules that they extend: those know only the interface in models/.
declare -A floor=([core]=0 [device]=1 [comm]=2 [ops]=2 [kernels]=2 [nn]=3 [data]=3 [store]=3 [models]=4 [parallel]=4
                  [optim]=4 [deck]=5 [run]=6 [train]=7 [lab]=8 [models/]=9 [report]=9 [app]=10)
room_of() {  # room_of VARIABLE FOLDER
  case $2 in models/*) printf -v "$1" models/ ;; *) printf -v "$1" '%s' "${2%%/*}" ;; esac
}
declare -A edge=()
bad=0
while IFS=: read -r file include; do
  from=${file#include/} to=$include
  from=${from#choir/} from=${from#src/} to=${to#choir/} to=${to#src/}
  from=${from%/*} to=${to%/*}
  room_of from_room "$from"; room_of to_room "$to"
  if [ "$from_room" = "$to_room" ]; then  # inside a module
    [ "$from" = "$to" ] || edge[$from,$to]=$file
    continue
  fi
  from=$from_room to=$to_room
  if [ -z "${floor[$from]:-}" ] || [ -z "${floor[$to]:-}" ]; then
    echo "layers: $file includes $include: no such module"; bad=1; continue
  fi
  if [ "${floor[$to]}" -gt "${floor[$from]}" ]; then
    echo "layers: $file (floor ${floor[$from]}) must not include $include (floor ${floor[$to]})"; bad=1
  fi
  [ "$from" = kernels ] && from=ops  # kernels and ops are one module in two folders
  [ "$to" = kernels ] && to=ops
  [ "$from" != "$to" ] && edge[$from,$to]=$file
done < <(grep -rHoE '^#include [<"](choir|src|kernels)/[^>"]+' include src kernels 2>/dev/null | sed -E 's/#include [<"]//')
# Cycles: the files that remain after all files were removed, step by step, that include no
# remaining file, or that no remaining file includes.
mapfile -t rooms < <(printf '%s\n' "${!edge[@]}" | tr ',' '\n' | sort -u); changed=1
while [ "$changed" = 1 ]; do
  changed=0
  for room in "${rooms[@]}"; do
    out="" in=""
    for e in "${!edge[@]}"; do
      [ "${e%,*}" != "$room" ] || out+=" $e"
      [ "${e#*,}" != "$room" ] || in+=" $e"
    done
    [ -z "$out" ] || [ -z "$in" ] || continue
    for e in $out $in; do unset -v "edge[$e]"; changed=1; done
  done
done
for e in "${!edge[@]}"; do echo "layers: cycle through ${e/,/ -> } (${edge[$e]})"; bad=1; done
# Some headers may be included in one layer only.
forbid() {  # forbid PATTERN WHERE... : includes of the pattern are forbidden below WHERE
  local pattern=$1; shift
  if hits=$(grep -rnE "#include [<\"]$pattern" "$@" 2>/dev/null); then echo "layers: not here:"; echo "$hits"; bad=1; fi
}
forbid 'mpi\.h' include/choir/{core,device,ops,nn,models,optim} src/{core,device,ops,nn,models,optim} kernels
forbid 'hdf5\.h' include/choir/{core,device,comm,ops,nn,data,models,parallel,optim,deck,run,train,lab,report} src/{core,device,comm,ops,nn,data,models,parallel,optim,deck,run,train,lab,report} kernels
mapfile -t others < <(find src include kernels -type f ! -name json_value.hpp)
forbid 'nlohmann/json\.hpp' "${others[@]}"
[ "$bad" = 0 ] && echo "layers: clean"
exit "$bad"
