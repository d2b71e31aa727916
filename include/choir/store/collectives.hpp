#pragma once
// The few things ranks tell each other about a checkpoint. All collective.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"

namespace choir {

/// Runs `action` on this rank. Returns "" when it went well everywhere, else the same reason on
/// every rank: what the lowest failing rank threw, and what to do. `action` must not communicate.
std::string attempt_together(Communicator& world, const std::function<void()>& action);

/// Rank 0's text on every rank.
void share_text(Communicator& world, std::string& text);

/// Element-wise exclusive or over ranks, on every rank.
void exclusive_or(Communicator& world, std::vector<std::uint32_t>& values);

/// A barrier whose waiting ranks sleep: a blocking one keeps a core busy, which training wants.
void patient_barrier(Communicator& world);

}  // namespace choir
