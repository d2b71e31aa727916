#include "src/core/build_info.hpp"

#include "src/core/json_value.hpp"

#include "choir_features.hpp"
#include "choir_revision.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"

namespace choir {

const char* build_revision() {
  return CHOIR_BUILD_REVISION;
}

std::string build_provenance(const std::string& mpi_library) {
  const nlohmann::ordered_json json{
      {"revision", build_revision()}, {"compiler", CHOIR_BUILD_COMPILER},
      {"march", CHOIR_BUILD_MARCH},   {"mpi", mpi_library},
      {"host", host_name()},          {"date", timestamp()}};
  return dumped(json);
}

}  // namespace choir
