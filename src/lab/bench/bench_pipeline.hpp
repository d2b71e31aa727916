#pragma once
// How the stages of a pipeline spend a step, from the executor's time stamps, compared with the
// simulation of the same schedule with the measured costs.
#include <string>
#include <vector>

#include "src/parallel/pipeline/pipeline_executor.hpp"
#include "src/train/step/engine.hpp"

namespace choir {

/// The timed step whose makespan is the median, in the pipeline of rank 0.
struct PipelineBench {
  std::string schedule, exchange;
  PipelineShape shape;
  double makespan = 0;   ///< seconds from the start of the first action to the end of the last
  double simulated = 0;  ///< the makespan if messages took no time
  std::vector<StageLoss> stages;
  std::vector<ChunkCost> chunks;  ///< mean costs in seconds, by virtual stage

  bool empty() const { return stages.empty(); }
  /// The share of all stages' time in which they do not compute: as measured, as simulated, and for
  /// equal stages, (p - 1) / (m v + p - 1).
  double idle() const;
  double bubble() const;
  double even_bubble() const;
};

/// Several lines of text; "" if `bench` is empty.
std::string to_string(const PipelineBench& bench);

/// Collects the time stamps of one step after another.
class PipelineRecorder {
 public:
  /// Local. Records at most `steps` steps of an engine with time_actions.
  PipelineRecorder(Engine& engine, std::size_t steps);
  /// Records the last finished step. Local; uses only memory that was reserved.
  void record();
  /// Collective over the mesh; the result is equal on every rank.
  PipelineBench gather(Mesh& mesh) const;

 private:
  Engine& engine_;
  std::vector<double> makespans_;  // of this stage, by step
  std::vector<ChunkCost> costs_;   // [steps, chunks of this stage]
};

}  // namespace choir
