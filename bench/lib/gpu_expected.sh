# gpu_expected FOLDER: prints a line for each kernel of gpu_expected.txt: the expected figure, the
# one in the CSVs of a report, and their ratio (to the middle of the expected range); kernels
# without a row in the report are named, too. A figure that no card has shown yet is marked
# "predicted".
gpu_expected() {
  local here
  here=$(dirname "${BASH_SOURCE[0]}")
  printf '%-34s %-22s %-20s %-12s %s\n' kernel shape expected measured ratio
  awk -F'|' -v folder="$1" '
    # Fields of a CSV line, some of which are quoted.
    function fields(line, into,   n, part) {
      n = 0
      while (line != "") {
        if (substr(line, 1, 1) == "\"") { match(line, /^"[^"]*"/); part = substr(line, 2, RLENGTH - 2); line = substr(line, RLENGTH + 2) }
        else { match(line, /^[^,]*/); part = substr(line, 1, RLENGTH); line = substr(line, RLENGTH + 2) }
        into[++n] = part
      }
      return n
    }
    /^#/ || NF < 8 { next }
    {
      file = folder "/" $1 ".csv"; best = ""; shape = ""
      while ((getline line < file) > 0) {
        fields(line, cell)
        if (cell[2] != $2 || ($3 != "" && cell[3] != $3) || cell[4] !~ $4 || cell[5] !~ ("^(" $5 ")$")) continue
        value = $6 == "%" ? 100 * cell[9] : (cell[8] == $6 ? cell[7] : "")
        if (value != "" && (best == "" || value + 0 > best + 0)) { best = value; shape = cell[4] }
      }
      close(file)
      expected = $7 " to " $8 " " $6; note = $9 == "" ? "" : "  " $9
      if (best == "") printf "%-34s %-22s %-20s %-12s %s%s\n", $2 " " $3, "-", expected, "not there", "-", note
      else printf "%-34s %-22s %-20s %-12s %.2f%s\n", $2 " " $3, shape, expected, sprintf("%.1f", best), 2 * best / ($7 + $8), note
    }' "$here/gpu_expected.txt"
}
