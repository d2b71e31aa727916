#include "choir/train/loop/start_check.hpp"

#include <algorithm>
#include <optional>

#include "choir/models/family.hpp"
#include "choir/store/open.hpp"
#include "choir/train/loop/run_directory.hpp"
#include "choir/train/step/run_setup.hpp"
#include "choir/train/step/training_data.hpp"

namespace choir {
namespace {

/// The data-parallel size, as far as the deck determines it: the future ranks are unknown.
int data_parallel_of(const Deck& deck) {
  const TrainSection& train = deck.train;
  if (deck.parallel.data > 0) return deck.parallel.data;
  const std::int64_t of_rank = std::int64_t{train.micro_batch_size} * train.grad_accum;
  if (!deck.family().fixed_shape() || of_rank == 0 || train.global_batch_size == 0) return 1;
  return static_cast<int>(std::max<std::int64_t>(1, train.global_batch_size / of_rank));
}

std::optional<Checkpoint> checkpoint_to_resume(const Deck& deck, const RunDirectory& directory,
                                               Communicator& world) {
  const std::string& resume = deck.checkpoint.resume;
  if (resume == "none") return std::nullopt;
  if (resume != "auto") return open_checkpoint(resume, world, Verify::sizes);
  return find_newest_valid(directory.checkpoints(), world, Verify::sizes);
}

}  // namespace

void check_start(Deck deck, Mesh& mesh, Logger& log) {
  const RunDirectory directory(deck.run.dir);
  directory.require_writable();
  const BatchSizes batch = resolve_batch(deck, data_parallel_of(deck));
  const auto data = deck.family().open_data(deck, batch, mesh, log);
  resolve_vocabulary(deck, data->vocab_size(), "the training data");
  log.plain(data->to_string());
  if (const auto found = checkpoint_to_resume(deck, directory, mesh.world())) {
    log.plain(fmt::format("the run continues from {}", found->path));
    return;
  }
  if (const std::string from = deck.checkpoint.init_run(); !from.empty()) {
    const Checkpoint checkpoint = open_checkpoint(from, mesh.world(), Verify::sizes);
    log.plain(fmt::format("the run begins with the weights of {}", checkpoint.path));
  }
  for (const auto& [pattern, path] : deck.checkpoint.init_map()) {
    const Checkpoint checkpoint = open_checkpoint(path, mesh.world(), Verify::sizes);
    log.plain(
        fmt::format("{} of the model begins with the weights of {}", pattern, checkpoint.path));
  }
}

}  // namespace choir
