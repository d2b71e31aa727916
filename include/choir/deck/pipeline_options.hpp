#pragma once
// How the layers of a model are distributed over the stages of a pipeline, and the order in which
// the stages work. Pure and local.
#include <memory>

#include "choir/device/device.hpp"
#include "choir/models/model.hpp"
#include "choir/models/model_config.hpp"
#include "choir/parallel/pipeline/schedule.hpp"

namespace choir {

struct PipelineOptions {
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int virtual_stages = 1;  ///< model pieces on each stage
  int forward_only =
      0;  ///< number of leading units without trained parameters, which need no backward
};

/// The pieces of `stage`, balanced by FLOPs: the input layer and the head count with their own
/// FLOPs, units without backward with a third. `separate_tied`: see ModelCut. Throws DeckError if
/// there are more pieces than layers.
ModelCut cut_of(const ModelConfig& model, const PipelineOptions& options, int stages, int stage,
                bool separate_tied);

/// The stage that holds this unit of the model.
int stage_of_unit(const ModelConfig& model, const PipelineOptions& options, int stages, int unit);

/// The actions of the stages in a training step of `micro_batches`. On a single stage, every
/// micro-batch runs forward and then immediately backward. The schedule has passed validate(). The
/// last one is cached because planners request the schedule of one pipeline once for each of its
/// ranks.
std::shared_ptr<const Schedule> training_schedule(const PipelineOptions& options, int stages,
                                                  int micro_batches, DeviceKind device);

}  // namespace choir
