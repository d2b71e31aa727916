#pragma once
// Ranks agree before they act: a failure on one rank becomes the same error on all.
#include <functional>

#include "choir/comm/communicator.hpp"
#include "choir/core/error.hpp"

namespace choir {

/// Collective over `comm`. Runs `action` on this rank; if it threw anywhere, every rank throws the error
/// of the lowest failing rank (same exit code, text prefixed with "rank r on host: "; the number of
/// failing ranks is added when there are several). `action` must not call collectives on `comm`.
void together(Communicator& comm, const std::function<void()>& action);

/// Collective: every rank passes the same bytes, or CommError names the ranks that differ from the
/// majority. `what` says what was compared ("parameters after broadcast").
void require_equal(Communicator& comm, std::uint64_t digest, const std::string& what);

}  // namespace choir
