#include "choir/app/guard.hpp"

#include <cstdio>

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

}  // namespace

int without_mpi(const std::function<int()>& body) {
  try {
    require_compiled_isa();
    return body();
  } catch (const std::exception& error) {
    print(describe(error));
    return static_cast<int>(code_of(error));
  }
}

int with_mpi(const std::function<int(MpiSession&)>& body) {
  return without_mpi([&] {
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
  });
}

}  // namespace choir
