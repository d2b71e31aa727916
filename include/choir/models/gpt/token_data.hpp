#pragma once
// The data a deck names, opened for the ranks of a mesh.
#include <memory>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/core/progress_line.hpp"
#include "choir/data/tokens/dataset.hpp"
#include "choir/deck/deck.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/train/step/training_data.hpp"

namespace choir {

/// Collective over the mesh: ranks of the data axis read their parts, and those of the tensor axis
/// get what the first of them read. `vocab_hash`: of the checkpoint, 0 for any. The default corpus
/// of the shipped decks (kDefaultCorpus) is made from the King James Bible of Debian's bible-kjv
/// where it is missing, and the log says so.
std::unique_ptr<Dataset> open_data(const Deck& deck, std::int64_t rows, Mesh& mesh, Logger& log,
                                   std::uint64_t vocab_hash = 0);

/// The micro-batches that an engine on this rank asks for, `per_rank` a step, from the sample
/// `first_sample` on. Local.
MicroBatchOrder micro_batch_order(const Sharding& sharding, std::int64_t per_rank,
                                  std::int64_t first_sample);

inline constexpr const char* kDefaultCorpus = "data/shakespeare/input.txt";

/// Seed of the order of training data by data.shard_seed, the same on all ranks. Collective over
/// the world.
std::uint64_t order_seed(const Deck& deck, Mesh& mesh);

/// A batch as the engine takes it: the same host memory, flat.
ModelBatch token_batch(const Batch& batch);

/// Mean loss over all validation data, then, of several sets, over each, rows shared by the ranks
/// of the data axis; the same bits on every number of them. Collective over the mesh.
std::vector<Validation> validations(ModelInstance& instance, Dataset& data, Mesh& mesh,
                                    ProgressLine* progress = nullptr);
/// The first of them.
double validation_loss(ModelInstance& instance, Dataset& data, Mesh& mesh,
                       ProgressLine* progress = nullptr);

}  // namespace choir
