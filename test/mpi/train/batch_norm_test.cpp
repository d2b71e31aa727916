// Tests of batch normalisation in any layout: statistics are those of global micro-batches, and
// running ones are those of one rank.
#include "src/store/collectives.hpp"
#include "src/store/store.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/mpi/train/curve.hpp"
#include "test/mpi/train/layout_case.hpp"
#include "test/unit/store/fixtures.hpp"
#include "test/unit/train/speech_case.hpp"

namespace choir::test {
namespace {

/// Logical running statistics, on every rank of the mesh.
LogicalState statistics_of(SpeechRun& run) {
  Progress progress;
  LogicalState state;
  for (const StoredTensor& tensor : tensors_to_save(run.engine(), progress)) {
    if (!tensor.name.starts_with(kRunningStatistics)) continue;
    std::vector<double>& values = state[tensor.name];
    values.assign(static_cast<std::size_t>(tensor.shape.count()), 0.0);
    for (const StoredPiece& piece : tensor.pieces)
      read_piece(tensor, piece, values.data() + piece.first);
    run.engine().mesh().world().all_reduce(values.data(), values.size(), DType::i64, ReduceOp::sum);
  }
  return state;
}

/// True if the statistics of this rank are equal to those in `state`.
bool holds_statistics(SpeechRun& run, const LogicalState& state) {
  Progress progress;
  for (const StoredTensor& tensor : tensors_to_load(run.engine(), progress)) {
    if (!tensor.name.starts_with(kRunningStatistics)) continue;
    for (const StoredPiece& piece : tensor.pieces) {
      std::vector<double> here(static_cast<std::size_t>(piece.count));
      read_piece(tensor, piece, here.data());
      if (!std::equal(here.begin(), here.end(), state.at(tensor.name).begin() + piece.first))
        return false;
    }
  }
  return true;
}

std::vector<GridLayout> norm_grids() {
  const int n = world_size();
  std::vector<GridLayout> list{{}};
  if (n == 1) return list;
  list.push_back({.zero = {.stage = 1}});
  list.push_back({.zero = {.stage = 2}});
  list.push_back({.zero = {.stage = 3}});
  if (n == 4) list.push_back({.zero = {.stage = 3, .group = 2}});
  if (n % 2 == 0) {
    list.push_back({.pipeline = 2});
    list.push_back({.pipeline = 2, .cut = {.schedule = ScheduleKind::zb_h1}});
    list.push_back({.tensor = 2});
    list.push_back({.tensor = 2, .sequence = true, .zero = {.stage = 2}});
  }
  if (n == 4) list.push_back({.pipeline = 2, .tensor = 2, .sequence = true});
  return list;
}

// In reproducible mode weights have the same bits in all layouts except over the tensor axis; then
// the statistics do, too.
TEST(BatchNormLayouts, RunningStatisticsAreThoseOfOneRank) {
  Meshes meshes;
  for (const bool full : {false, true}) {
    FastConformerConfig c = batch_normed();
    c.stochastic_depth = 0.2;
    if (full) c.recompute = Recompute::full;
    const EngineOptions base = speech_options(c, "fp64", kMicroBatches, true);
    SingleRank single;
    SpeechRun one(base, *single.mesh);
    LogicalState expected;
    for (int step = 0; step < 3; ++step) one.step();
    expected = statistics_of(one);
    for (const GridLayout& grid : norm_grids()) {
      if (kMicroBatches % grid.data() != 0) continue;
      SpeechRun many(laid_out(base, grid, kMicroBatches), meshes.of(grid));
      for (int step = 0; step < 3; ++step) many.step();
      const LogicalState found = statistics_of(many);
      const double far = distance(expected, found);
      EXPECT_ALL_RANKS(grid.tensor > 1 ? far <= 1e-12 : first_difference(expected, found).empty())
          << grid.to_string() << ": " << far << " " << first_difference(expected, found);
      EXPECT_ALL_RANKS(holds_statistics(many, found)) << grid.to_string();
    }
  }
}

TEST(BatchNormLayouts, CheckpointsKnowNoLayout) {
  Meshes meshes;
  std::unique_ptr<TemporaryDirectory> folder;
  std::string path;
  if (world_rank() == 0) {
    folder = std::make_unique<TemporaryDirectory>();
    path = folder->path() + "/checkpoints";
  }
  share_text(meshes.of({}).world(), path);
  const EngineOptions base = speech_options(batch_normed(), "fp64", kMicroBatches);
  std::int64_t saves = 0;
  for (const GridLayout& from : norm_grids()) {
    if (kMicroBatches % from.data() != 0) continue;
    SpeechRun run(laid_out(base, from, kMicroBatches), meshes.of(from));
    run.step();
    const LogicalState expected = statistics_of(run);
    Progress progress{.step = ++saves};
    CheckpointStore store(path, run.engine().mesh().world());
    EXPECT_ALL_RANKS(
        store.save({.step = saves, .json = "{}"}, tensors_to_save(run.engine(), progress)).saved);
    const auto found = store.find_newest_valid();
    ASSERT_ALL_RANKS(found.has_value());
    for (const GridLayout& to : norm_grids()) {
      if (kMicroBatches % to.data() != 0) continue;
      SpeechRun other(laid_out(base, to, kMicroBatches), meshes.of(to));
      Progress restored;
      load_checkpoint(*found, tensors_to_load(other.engine(), restored),
                      other.engine().mesh().world());
      EXPECT_ALL_RANKS(holds_statistics(other, expected))
          << from.to_string() << " to " << to.to_string();
    }
  }
}

}  // namespace
}  // namespace choir::test
