#pragma once
// Another program, run without a shell.
#include <string>
#include <vector>

namespace choir {

/// Local; may be called by several threads. What `argv` (argv[0] is looked up in PATH) writes to
/// its standard output, with nothing at its standard input. Throws DataError: the program is not
/// there (names `package`), or it did not end with 0 (with what it said).
std::string run_program(const std::vector<std::string>& argv, const std::string& package);

}  // namespace choir
