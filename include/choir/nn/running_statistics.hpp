#pragma once
// Running mean and variance of a norm over the frames of a micro-batch (batch normalisation): they
// persist but are not trained, and are what evaluation normalises with. A micro-batch leaves its
// own statistics in a place of its own, again when it is run again; at the end of the step those of
// all micro-batches are folded in, in the order of their global index
// (choir/parallel/statistics_storage.hpp).
#include <cstdint>
#include <string>

#include "choir/core/tensor.hpp"

namespace choir {

struct Parameter;

struct RunningStatistics {
  std::string name;  ///< of the norm
  /// Its weight [C]: the channels are divided over ranks as this is, and are where it is.
  const Parameter* weight = nullptr;

  // Set by StatisticsStorage where the weight is resident. Of the channels of this rank, in the
  // type of statistics.
  TensorView mean, variance;  ///< [c]
  TensorView records;  ///< [micro-batches of this rank, 2, c]: mean, unbiased variance; empty
                       ///< outside training
  TensorView frames;   ///< [micro-batches of this rank]: that counted; of all norms the same
};

}  // namespace choir
