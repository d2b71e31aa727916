# shellcheck shell=bash
# override KEY=VALUE: sets it in the array `overrides`, in the place of what was there: choir refuses a key given twice.
override() {
  local word kept=()
  for word in ${overrides[@]+"${overrides[@]}"}; do
    [ "${word%%=*}" = "${1%%=*}" ] || kept+=("$word")
  done
  overrides=(${kept[@]+"${kept[@]}"} "$1")
}
