#pragma once
// What a run says of its pipeline before the first step: which stage holds what, in which order
// they work, and how long they would wait for each other.
#include <string>

#include "choir/train/engine/engine.hpp"

namespace choir {

/// Pure and local; empty for one stage. The bubble is simulated from the FLOPs of each piece, with
/// messages that take no time.
std::string pipeline_report(const EngineOptions& options, int stages);

}  // namespace choir
