#pragma once
// What a run says before its first step.
#include <string>

#include "choir/comm/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/train/engine/engine.hpp"
#include "choir/train/engine/step_plan.hpp"

namespace choir {

/// "[device='cpu'][rank=2/3][local_rank=2/3][node=0/0] host ..." of this rank, with its GPU. Local.
std::string who_am_i(Mesh& mesh, const Device& device);

/// The dist_info block of the ALCF tutorial. Local. `device_reason`: as in Workplace.
std::string dist_info(Mesh& mesh, const Device& device, const std::string& device_reason);

/// How each axis communicates, and how fast, measured now. Collective over the world.
std::string transport_report(Mesh& mesh, Device& device);

/// Parameters, tokens per iteration, module tree. Local.
std::string model_report(Engine& engine);
/// One line: what parallel.zero spreads over which ranks, and the bytes a rank moves in a step.
std::string zero_report(Engine& engine);
/// One line: what parallel.offload keeps where, or that it is of no effect, and what a step moves.
std::string offload_report(Engine& engine);

/// The plan of this rank with its exact arena, and which rank has the largest. Collective over
/// `world`.
std::string memory_report(const StepPlan& plan, Communicator& world);

}  // namespace choir
