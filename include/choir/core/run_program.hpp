#pragma once
// Runs another program without a shell.
#include <string>
#include <vector>

namespace choir {

/// Returns the standard output of `argv`; argv[0] is searched in PATH, and standard input is empty.
/// Throws DataError if the program is missing (the hint names `package`) or exits with another code
/// than 0 (the message quotes its standard error). Local; may be called by several threads.
std::string run_program(const std::vector<std::string>& argv, const std::string& package);

}  // namespace choir
