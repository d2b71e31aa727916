#pragma once
// Standard output and standard error after their reader has gone.

namespace choir {

/// From now on, text that is printed to `stdout` and `stderr` after their reader has gone (a `head`
/// that ended, a closed terminal) is discarded, and the command continues. Other write errors
/// remain errors. Called once per process, before anything is printed.
void outlive_readers();

/// True for the first caller after text was discarded; that caller reports it.
bool report_lost_reader();

}  // namespace choir
