#pragma once
// The first line of metrics.jsonl, and one more for every continuation: where the run runs and what
// it planned, so that the directory of a run explains itself.
#include <cstdint>
#include <string>

#include "choir/comm/mesh.hpp"
#include "choir/train/engine/step_plan.hpp"

namespace choir {

/// What the record has beside the mesh and the plan.
struct StartFacts {
  std::int64_t step = 0;  ///< behind the run when it starts
  std::string device;     ///< description
  std::int64_t parameters = 0;
  std::int64_t resident_before = 0;  ///< bytes of this process, before the model
};

/// Collective over the world of `mesh`; the record at rank 0, elsewhere "". One JSON object:
/// {"event":"start","step":0,"time":...,"layout":{"order":"tp-cp-dp-pp","tp":1,"cp":1,"dp":2,
/// "pp":1},"ranks":[{"node":0,"host":"a","threads":4,"planned":BYTES}, ...],"memory":[{"name":
/// "parameters","bytes":...,"place":"device"}, ...],"provenance":{...}, ...}; memory is rank 0's.
std::string start_record(const StartFacts& facts, Mesh& mesh, const StepPlan& plan);

}  // namespace choir
