# kernel_times [LINES]: reads Nsight Compute's CSV of gpu__time_duration.sum on the standard input
# and prints the last whole step: all its kernels together, then each by its name without
# parameters, longest first (30 lines).
kernel_times() {
  awk -F'","' -v lines="${1:-30}" '
    function keep(  k) {  # the end of a step: its numbers are those to show
      delete total; delete count; all = launches = 0
      for (k in t) { total[k] = t[k]; count[k] = c[k]; all += t[k]; launches += c[k] }
      delete t; delete c
    }
    /^"ID"/ { for (i = 1; i <= NF; ++i) { gsub(/"/, "", $i); column[$i] = i }; next }
    !("Kernel Name" in column) || $column["Metric Name"] != "gpu__time_duration.sum" { next }
    {
      name = $column["Kernel Name"]; value = $column["Metric Value"]; gsub(/[",]/, "", value)
      if ($column["Metric Unit"] ~ /^(us|usecond)$/) value *= 1000
      if (name ~ /begin_step_kernel/) { if (steps++) keep(); else { delete t; delete c } }
      sub(/\(.*/, "", name); sub(/^void /, "", name)
      t[name] += value; ++c[name]
    }
    END {
      if (!launches) { print "no whole step"; exit 1 }
      printf "%d kernels, %.3f ms\n", launches, all / 1e6
      sorted = "sort -rn | head -n " lines
      for (k in total)
        printf "%9.3f ms %5.1f %% %5d x %9.2f us  %s\n", total[k] / 1e6, 100 * total[k] / all, count[k], total[k] / count[k] / 1e3, k | sorted
      close(sorted)
    }'
}
