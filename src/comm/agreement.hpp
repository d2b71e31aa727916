#pragma once
// Agreement of ranks before they act, so that a failure on one rank becomes the same error on all
// of them; and the exchange of texts between ranks.
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/error.hpp"

namespace choir {

/// Collective over `comm`. Runs `action` on this rank. If it throws on any rank, every rank throws
/// the error of the lowest failing rank (same exit code, text prefixed with "rank r on host: "; the
/// number of failing ranks is appended if there are several). An error that all ranks share, such
/// as a wrong deck, has neither, and on a single rank the error passes unchanged. `action` must not
/// call collectives on `comm`.
void together(Communicator& comm, const std::function<void()>& action);

/// Collective: every rank passes the same digest, or CommError names the ranks that differ from the
/// majority. `what` names the compared data ("parameters after broadcast").
void require_equal(Communicator& comm, std::uint64_t digest, const std::string& what);

/// The outcome of a step: that of one rank, or after agree() that of all ranks.
struct StepVerdict {
  ExitCode failure = ExitCode::done;  ///< of the lowest failing rank; `done` if no rank failed
  int failing_rank = -1;              ///< lowest rank that failed, -1 for none; set by agree()
  int stop = 0;                       ///< the largest stop request of any rank; 0 for none
  bool nonfinite = false;             ///< true if some rank met a NaN or an infinity
  friend bool operator==(const StepVerdict&, const StepVerdict&) = default;
};

/// Collective: one all_reduce(max) of three integers with the same result on every rank. Does not
/// throw for a failure that it reports (see raise_agreed()). Allocates nothing.
StepVerdict agree(Communicator& comm, const StepVerdict& mine);

/// Collective, after agree() reported a failure. The failing rank passes its exception (others
/// nullptr), and every rank throws it as together() does.
[[noreturn]] void raise_agreed(Communicator& comm, const StepVerdict& agreed,
                               const std::exception_ptr& mine);

/// Collective over `comm`. Rank 0 gets the texts in rank order, every other rank gets nothing.
std::vector<std::string> gather_texts(Communicator& comm, const std::string& mine);
/// Collective over `comm`. Every rank gets the text of `root`.
void broadcast_text(Communicator& comm, std::string& text, int root = 0);

}  // namespace choir
