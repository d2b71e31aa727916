#pragma once
// The mean of checkpoints of one run as a new run, with which runs generate, evaluate and train.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/deck/family_table.hpp"

namespace choir {

struct AverageRequest {
  const FamilyTable* families = nullptr;  ///< those of the program; must be set
  std::string run;                        ///< run directory, or its folder of checkpoints
  std::vector<std::int64_t> steps;        ///< the checkpoints to average; empty: the newest
  int last = 0;                           ///< without steps: the number of newest checkpoints
  std::string out;                        ///< the run directory to create
};

struct AverageReport {
  std::vector<std::int64_t> steps;   ///< averaged, ascending
  std::vector<std::string> skipped;  ///< checkpoints that were passed over, with their reasons
  std::string checkpoint;            ///< its folder
  std::int64_t tensors = 0, elements = 0;  ///< averaged
  std::int64_t bytes = 0;                  ///< of the new checkpoint
};

/// Writes deck.json and a checkpoint of step 0 whose parameters and running statistics are the
/// means of those of the checkpoints: for k = 1, 2, ... in the order of the steps s += (w - s) / k
/// in f64, rounded once to the type of the tensor. The moments of the optimizer are zero, and the
/// progress is that of a run that has not begun. The ranks divide every tensor, and a chunk of it
/// is read, averaged and written at a time: 20 MiB of memory per rank, whatever the size of the
/// model.
///
/// Throws on every rank: DeckError for a folder that is not empty, steps that the run does not
/// have, or too few checkpoints; for checkpoints of different models or vocabularies; and for
/// adapters, because the mean of products is not the product of means. StorageError if a chosen
/// checkpoint is damaged or there is no space; NumericError if a weight is not finite. Collective.
AverageReport average_checkpoints(Communicator& world, const AverageRequest& request);

}  // namespace choir
