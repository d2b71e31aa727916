#include "choir/app/guard.hpp"

#include <cstdio>
#include <cstdlib>

#include "choir/core/error.hpp"
#include "choir/device/cpu_device.hpp"

namespace choir {
namespace {

ExitCode code_of(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return own ? own->code() : ExitCode::other;
}

void print(const std::string& text) {
  std::fprintf(stderr, "choir: %s\n", text.c_str());
  std::fflush(stderr);
}

/// Before MPI is up all ranks meet the same error: the launcher's first process speaks for them.
bool speaks() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::string(rank) == "0";
  return true;
}

int guarded(const std::function<int()>& body, bool everyone_speaks) {
  try {
    require_compiled_isa();
    return body();
  } catch (const std::exception& error) {
    if (everyone_speaks || speaks()) print(describe(error));
    return static_cast<int>(code_of(error));
  }
}

}  // namespace

int without_mpi(const std::function<int()>& body) {
  return guarded(body, false);
}

int with_mpi(const std::function<int(MpiSession&)>& body) {
  const auto all = [&] {
    MpiSession session;
    try {
      return body(session);
    } catch (const std::exception& error) {
      const auto* own = dynamic_cast<const Error*>(&error);
      const bool everywhere = (own ? own->agreed_ranks() : 1) == session.size();
      if (everywhere && session.rank() == 0) print(describe(error));
      if (everywhere) return static_cast<int>(code_of(error));
      print(fmt::format("[rank {}/{}] {}", session.rank(), session.host(), describe(error)));
      MpiSession::abort(code_of(error));
    }
  };
  return guarded(all, true);
}

}  // namespace choir
