#!/usr/bin/env bash
# mutate.sh FOLDER [RULES]: writes the sources that RULES (test/mutants/rules.txt) changes, with the
# changes, under FOLDER. If the text of a rule is not exactly once in its source, it ends with exit
# code 1: the source has changed, and the rule has to follow.
set -eu
folder=$1 rules=${2:-test/mutants/rules.txt}
cd "$(dirname "$0")/../.."
declare -A changed=()
rule="" file="" find="" put="" line=0
apply() {
  [ -n "$find" ] || return 0
  local text=${changed[$file]-} before after
  [ -n "$text" ] || text=$(<"$file")
  before=${text%%"$find"*} after=${text#*"$find"}
  if [ "$before" = "$text" ] || [ "${after#*"$find"}" != "$after" ]; then
    echo "$rules:$line: $rule: $file does not contain exactly once: $find" >&2
    exit 1
  fi
  changed[$file]=$before${put//MUTANT/"::choir::mutants::breaks(\"$rule\")"}$after
  find="" put=""
}
while IFS= read -r text; do
  line=$((line + 1))
  case $text in
    '#'* | '' | 'seen by '*) ;;
    'rule '*) apply; rule=${text#rule }; rule=${rule%%:*} ;;
    always) apply; rule=always ;;
    'in '*) apply; file=${text#in } ;;
    '- '*) find+=${find:+$'\n'}${text#- } ;;
    '+ '*) put+=${put:+$'\n'}${text#+ } ;;
    *) echo "$rules:$line: neither a rule nor an edit: $text" >&2; exit 1 ;;
  esac
done <"$rules"
apply
for file in "${!changed[@]}"; do
  mkdir -p "$folder/$(dirname "$file")"
  printf '%s\n' "${changed[$file]}" | cmp -s - "$folder/$file" || printf '%s\n' "${changed[$file]}" >"$folder/$file"
done
