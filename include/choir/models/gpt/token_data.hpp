#pragma once
// The token data that a deck names, opened for the ranks of a mesh.
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

/// Collective over the mesh: ranks of the data axis read their parts, and the first rank of the
/// tensor axis passes what it read to the others. `vocab_hash`: that of the checkpoint, 0 for any.
/// If the default corpus of the shipped decks (kDefaultCorpus) is missing, the King James Bible of
/// Debian's bible-kjv replaces it, and the log reports it.
std::unique_ptr<Dataset> open_data(const Deck& deck, std::int64_t rows, Mesh& mesh, Logger& log,
                                   std::uint64_t vocab_hash = 0);

/// The micro-batches that an engine on this rank asks for, `per_rank` in each step, from the sample
/// `first_sample` on. Local.
MicroBatchOrder micro_batch_order(const Sharding& sharding, std::int64_t per_rank,
                                  std::int64_t first_sample);

inline constexpr const char* kDefaultCorpus = "data/shakespeare/input.txt";

/// The seed of the order of training data (data.shard_seed), the same on all ranks. Collective over
/// the world.
std::uint64_t order_seed(const Deck& deck, Mesh& mesh);

/// A batch in the engine's form: the same host memory, flat.
ModelBatch token_batch(const Batch& batch);

/// Mean loss over all validation data, then, if there are several sets, over each. The ranks of the
/// data axis divide the rows; the result does not depend on their number, bit by bit. Collective
/// over the mesh.
std::vector<Validation> validations(ModelInstance& instance, Dataset& data, Mesh& mesh,
                                    ProgressLine* progress = nullptr);
/// The mean loss over all validation data.
double validation_loss(ModelInstance& instance, Dataset& data, Mesh& mesh,
                       ProgressLine* progress = nullptr);

}  // namespace choir
