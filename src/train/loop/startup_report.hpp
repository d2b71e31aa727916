#pragma once
// What a run says before its first step.
#include <cstdint>
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/train/step/engine.hpp"
#include "choir/train/step/step_plan.hpp"

namespace choir {

/// "[device='cpu'][rank=2/3][local_rank=2/3][node=0/0] host ..." of this rank, with its GPU. Local.
std::string who_am_i(Mesh& mesh, const Device& device);

/// The dist_info block of the ALCF tutorial. Local. `device_reason`: as in Workplace.
std::string dist_info(Mesh& mesh, const Device& device, const std::string& device_reason);

/// How each axis communicates, and how fast.
std::string transport_report(const Mesh& mesh, const std::vector<AxisSpeed>& speeds);

/// Parameters, tokens per iteration, module tree. Local.
std::string model_report(Engine& engine);
/// One line: what parallel.zero spreads over which ranks, and the bytes a rank moves in a step.
std::string zero_report(Engine& engine);
/// One line: what parallel.offload keeps where, or that it is of no effect, and what a step moves.
std::string offload_report(Engine& engine);

/// The plan of this rank with its exact arena, and which rank has the largest. Collective over
/// `world`.
std::string memory_report(const StepPlan& plan, Communicator& world);

/// Which stage holds what, in which order they work, and how long they would wait for each other.
/// Pure and local; empty for one stage. The bubble is simulated from the FLOPs of each piece, with
/// messages that take no time.
std::string pipeline_report(const EngineOptions& options, int stages);

/// What the record has beside the mesh and the plan.
struct StartFacts {
  std::int64_t step = 0;  ///< behind the run when it starts
  std::string device;     ///< description
  std::int64_t parameters = 0;
  std::int64_t resident_before = 0;  ///< bytes of this process, before the model
};

/// The first line of metrics.jsonl, and one more for every continuation, so that the directory of a
/// run explains itself. Collective over the world of `mesh`; the record at rank 0, elsewhere "".
/// One JSON object:
/// {"event":"start","step":0,"time":...,"layout":{"order":"tp-cp-dp-pp","tp":1,"cp":1,"dp":2,
/// "pp":1},"ranks":[{"node":0,"host":"a","threads":4,"planned":BYTES}, ...],"memory":[{"name":
/// "parameters","bytes":...,"place":"device"}, ...],"provenance":{...}, ...}; memory is rank 0's.
std::string start_record(const StartFacts& facts, Mesh& mesh, const StepPlan& plan);

}  // namespace choir
