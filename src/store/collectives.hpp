#pragma once
// The collective operations of the checkpoint protocol.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"

namespace choir {

/// Runs `action` on this rank. Returns "" if it succeeded everywhere, else the same reason on every
/// rank: the error and the cure of the lowest failing rank. `action` must not communicate.
std::string attempt_together(Communicator& world, const std::function<void()>& action);

/// Broadcasts the text of rank 0.
void share_text(Communicator& world, std::string& text);

/// Element-wise exclusive or over ranks, on every rank.
void exclusive_or(Communicator& world, std::vector<std::uint32_t>& values);

/// A barrier whose waiting ranks sleep. A blocking barrier would keep a core busy that training
/// needs.
void patient_barrier(Communicator& world);

}  // namespace choir
