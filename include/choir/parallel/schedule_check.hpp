#pragma once
// The proof that a pipeline schedule is right, whoever made it. Pure and local.
#include "choir/parallel/schedule.hpp"

namespace choir {

/// Throws Error that names the stage, the action and the reason unless:
/// - every chunk does the forward and the backward (or B, and W behind it) of every micro-batch
///   exactly once (of forward-only: the forward), in ascending order of micro-batches (the order in
///   which gradients are summed), each behind what it needs: the receive of its input, its forward,
///   its gradient;
/// - every activation and gradient that another stage needs is sent once, behind its production,
///   and nothing else is;
/// - what a stage sends to another arrives in the order in which that one receives;
/// - it does not deadlock under blocking and under buffered exchange;
/// - no stage holds more activations than promised_live() of its kind.
void validate(const Schedule& schedule);

}  // namespace choir
