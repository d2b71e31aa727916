#pragma once
// Who built this program and with what; stored with every checkpoint and benchmark.
#include <string>

namespace choir {

/// {"revision": ..., "compiler": ..., "march": ..., "mpi": ..., "host": ..., "date": ...}
std::string build_provenance();

}  // namespace choir
