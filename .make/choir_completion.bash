# Completion of choir for bash: subcommands, options, and keys of decks with their values, as the
# program itself lists them.
_choir() {
  local line=${COMP_LINE:0:COMP_POINT} current="" command=() choices="" program word words
  read -r -a words <<<"$line"
  [[ $line == *[[:space:]] ]] || { current=${words[-1]}; unset -v 'words[-1]'; }
  program=${words[0]:-choir}
  for word in "${words[@]:1}"; do  # the subcommand, and that of bench and prepare
    [[ $word == -* || $word == *=* ]] && continue
    case "${#command[@]} ${command[*]}" in 0* | "1 bench" | "1 prepare") command+=("$word") ;; esac
  done
  case $current in
    *.*=* | device=*)  # bash treats "=" as the end of a word: VALUE of KEY=VALUE is replaced
      choices=$("$program" train --describe 2>/dev/null | awk -v key="${current%%=*}" '$1 == key {
        if (/true or false/) print "true false"
        else if (sub(/^[^;]*; */, "") && gsub(/\|/, " ")) print }')
      current=${current#*=} ;;
    -*) choices=$("$program" "${command[@]}" --help 2>/dev/null | sed -nE 's/^  (-h,)?(--[a-z0-9-]+).*/\2/p') ;;
    *)
      case "${#command[@]} ${command[*]}" in
        0* | "1 bench" | "1 prepare")
          choices=$("$program" "${command[@]}" --help 2>/dev/null | sed -nE 's/^  ([a-z]+)  *[^ ].*/\1/p') ;;
        *)
          [ -z "$current" ] || choices=$("$program" train --describe 2>/dev/null | sed -nE 's/^  ([a-z][a-z0-9_.]*) .*/\1=/p')
          compopt -o nospace 2>/dev/null ;;
      esac ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
}
complete -o default -F _choir choir
