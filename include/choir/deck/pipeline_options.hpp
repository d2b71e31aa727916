#pragma once
// How the layers of a model are dealt out to the stages of a pipeline, and in which order those
// work. Pure and local.
#include <memory>

#include "choir/device/device.hpp"
#include "choir/models/model_config.hpp"
#include "choir/models/units.hpp"
#include "choir/parallel/pipeline/schedule.hpp"

namespace choir {

struct PipelineOptions {
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int virtual_stages = 1;  ///< pieces of the model on each stage
  int forward_only = 0;    ///< so many units at the start have nothing to train, and no backward
};

/// The pieces of `stage`: balanced by FLOPs, where input layer and head count as what they are, and
/// units without backward for a third.
/// `separate_tied`: see ModelCut. DeckError if there are more pieces than layers.
ModelCut cut_of(const ModelConfig& model, const PipelineOptions& options, int stages, int stage,
                bool separate_tied);

/// The stage that has this unit of the model.
int stage_of_unit(const ModelConfig& model, const PipelineOptions& options, int stages, int unit);

/// What the stages do in a training step of `micro_batches`; on one stage every micro-batch goes
/// forward and at once backward. Has passed validate(). The last one is kept: plans ask for that of
/// one pipeline once for each of its ranks.
std::shared_ptr<const Schedule> training_schedule(const PipelineOptions& options, int stages,
                                                  int micro_batches, DeviceKind device);

}  // namespace choir
