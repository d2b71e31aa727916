#pragma once
// Where the stages of a pipeline spend a step, by the executor's time stamps, beside what the
// simulator says of the same schedule with the measured costs.
#include <string>
#include <vector>

#include "choir/parallel/pipeline/pipeline_executor.hpp"
#include "choir/train/step/engine.hpp"

namespace choir {

/// The timed step whose makespan is the median, in the pipeline of rank 0.
struct PipelineBench {
  std::string schedule, exchange;
  PipelineShape shape;
  double makespan = 0;   ///< seconds from the start of the first action to the end of the last
  double simulated = 0;  ///< the same if messages took no time
  std::vector<StageLoss> stages;
  std::vector<ChunkCost> chunks;  ///< [virtual stages]: means, seconds

  bool empty() const { return stages.empty(); }
  /// Share of all stages' time in which they do not compute: measured; simulated; and that of equal
  /// stages, (p - 1) / (m v + p - 1).
  double idle() const;
  double bubble() const;
  double even_bubble() const;
};

/// Text of several lines; "" of an empty one.
std::string to_string(const PipelineBench& bench);

/// Takes the time stamps of one step after another.
class PipelineRecorder {
 public:
  /// Local. For at most `steps` steps of an engine with time_actions.
  PipelineRecorder(Engine& engine, std::size_t steps);
  /// Local: the last finished step. Keeps nothing that it did not reserve.
  void record();
  /// Collective over the mesh; equal on every rank.
  PipelineBench gather(Mesh& mesh) const;

 private:
  Engine& engine_;
  std::vector<double> makespans_;  // [steps], of this stage
  std::vector<ChunkCost> costs_;   // [steps, chunks of this stage]
};

}  // namespace choir
