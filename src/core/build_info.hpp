#pragma once
// Revision, compiler and libraries of this program; stored with every checkpoint and benchmark.
#include <string>

namespace choir {

/// The version of the program. It is also in the changelog and in the citation file in .github.
inline constexpr const char* kVersion = "0.1.0";

/// The revision of the sources, "7dca555" or "7dca555-dirty".
const char* build_revision();

/// {"revision": ..., "compiler": ..., "march": ..., "mpi": ..., "host": ..., "date": ...}
/// `mpi_library` is MpiSession::library_version().
std::string build_provenance(const std::string& mpi_library);

}  // namespace choir
