#include "src/run/imported_run.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "src/comm/mpi/mpi_session.hpp"
#include "src/core/build_info.hpp"
#include "src/core/text.hpp"
#include "src/optim/optimizer.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

std::vector<StoredTensor> imported_tensors(const Communicator& world, const Deck& deck,
                                           const ParameterSet& parameters, ImportedValues& values,
                                           std::vector<std::byte>& zeros, Progress& progress) {
  const Precision precision = precision_of(deck);
  const UpdateSettings settings = update_settings_of(deck);
  std::vector<StoredTensor> list;
  std::size_t largest = 0, i = 0;
  for (const Parameter* p : parameters.all())
    if (const std::size_t bytes = values.rows[i++].size(); p->trainable)
      largest = std::max(largest, bytes);
  // All moments are zero and share one buffer.
  zeros.assign(largest / size_of(precision.master) * size_of(precision.moment), std::byte{0});
  i = 0;
  for (const Parameter* p : parameters.all()) {
    const RowShare share = share_of_rows(p->shape[0], world.rank(), world.size());
    const std::int64_t columns = p->shape.count() / p->shape[0];
    const auto add = [&](const std::string& kind, DType dtype, void* data) {
      list.push_back({.name = kind + p->name,
                      .dtype = dtype,
                      .shape = p->shape,
                      .pieces = {{share.first * columns, share.rows * columns, data}}});
    };
    add("parameters/", precision.kept(p->trainable), values.rows[i++].data());
    if (!p->trainable) continue;
    for (std::size_t m = 0; m < settings.rule->moments().size(); ++m)
      if (settings.rule->keeps(settings, m, *p))
        add(fmt::format("optimizer/{}/", settings.rule->moments()[m]), precision.moment,
            zeros.data());
  }
  list.insert(list.end(), values.more.begin(), values.more.end());
  const ops::LossScaling scaling = loss_scaling_of(deck);
  progress.loss_scale = scaling.start;
  for (const State& state : progress.states(scaling.dynamic())) {
    StoredTensor tensor{.name = "state/" + state.name,
                        .dtype = state.value.dtype,
                        .shape = state.value.shape,
                        .pieces = {}};
    if (world.rank() == 0) tensor.pieces.push_back({0, state.value.count(), state.value.data});
    list.push_back(std::move(tensor));
  }
  return list;
}

}  // namespace

RowShare share_of_rows(std::int64_t rows, int rank, int ranks) {
  const std::int64_t first = rows * rank / ranks;
  return {first, rows * (rank + 1) / ranks - first};
}

void require_match(std::int64_t taken, const std::string& path,
                   const std::vector<std::string>& missing,
                   const std::vector<std::string>& unused) {
  if (taken > 0) return;
  const auto first_of = [](std::vector<std::string> names) {
    constexpr std::size_t kNamed = 5;
    const std::size_t count = names.size();
    names.resize(std::min(count, kNamed));
    return join(names, ", ") +
           (count > kNamed ? fmt::format(" and {} more", count - kNamed) : std::string());
  };
  throw DataError(
      fmt::format(
          "'{}' has no tensor that the described model has:\n  the model has {}\n  the file "
          "has {}",
          path, first_of(missing), unused.empty() ? "no weights" : first_of(unused)),
      "the file belongs to another model than the description, or its names were changed");
}

void require_free_folder(const std::string& out) {
  std::error_code ignored;
  if (fs::exists(out, ignored) && !fs::is_empty(out, ignored))
    throw DeckError(fmt::format("'{}' is not empty", out), "name a new folder with --out");
}

void make_run_folder(const std::string& out) {
  std::error_code ignored;
  fs::create_directories(out, ignored);
  if (!fs::is_directory(out, ignored))
    throw StorageError(fmt::format("cannot create the folder '{}'", out),
                       "choose another folder with --out");
}

SaveResult save_imported(Communicator& world, const std::string& out, const Deck& deck,
                         const ParameterSet& parameters, ImportedValues& values) {
  CheckpointStore store((fs::path(out) / "checkpoints").string(), world);
  const TrainMeta meta{.deck = resolved_json(deck),
                       .vocabulary = values.vocabulary,
                       .vocab_size = values.vocab_size,
                       .data = "",
                       .provenance = build_provenance(MpiSession::library_version())};
  std::vector<std::byte> zeros;
  Progress progress;
  SaveResult result = store.save(
      {.step = 0, .json = meta.to_json(), .deck_hash = deck_digest(deck), .layout = "imported"},
      imported_tensors(world, deck, parameters, values, zeros, progress));
  if (result.saved) return result;
  StorageError error(result.reason, "free space, or choose another folder with --out");
  error.set_agreed_ranks(world.size());
  throw error;
}

}  // namespace choir
