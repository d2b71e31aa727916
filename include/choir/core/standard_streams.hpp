#pragma once
// Standard output and standard error of a process that outlives whoever reads them.

namespace choir {

/// From now on what is printed to `stdout` and `stderr` after their reader has gone (`head` that
/// has seen enough, a terminal that was closed) is discarded, and the command continues. Other
/// errors of a write remain errors. Once in a process, before anything is printed.
void outlive_readers();

/// True for the first caller after something was discarded, who reports it.
bool report_lost_reader();

}  // namespace choir
