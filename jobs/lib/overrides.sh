# shellcheck shell=bash
# override KEY=VALUE: sets it in the array `overrides`, replacing an older value, because choir
# refuses a key given twice.
override() {
  local word kept=()
  for word in ${overrides[@]+"${overrides[@]}"}; do
    [ "${word%%=*}" = "${1%%=*}" ] || kept+=("$word")
  done
  overrides=(${kept[@]+"${kept[@]}"} "$1")
}

# Runs `choir train --check`, which opens the data of the deck; further words are options of it. Data named by STAGE are not on the
# disks of the nodes yet, so the check reads the originals. Call this in a subshell, because it
# changes the overrides.
# shellcheck disable=SC2154  # deck is the caller's, as overrides are
check_deck() {  # check_deck PROGRAM [OPTION ...]
  local item key path
  local -A paths=()
  for item in ${STAGE:-}; do
    key=${item%%=*} path=${item#*=}
    [ -e "$path" ] || continue
    paths[$key]+=${paths[$key]:+,}\"$path\"
    override "$key=[${paths[$key]}]"
  done
  "$1" train --check "$deck" ${overrides[@]+"${overrides[@]}"} "${@:2}"
}
