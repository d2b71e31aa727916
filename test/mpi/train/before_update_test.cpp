// Tests that a save, which copies and compares tensors during the step that follows, sees them
// unchanged: in any layout and precision the update of that step waits for the save.
#include "src/train/loop/weight_check.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/mpi/train/layout_case.hpp"
#include "test/unit/train/speech_case.hpp"

namespace choir::test {
namespace {

/// All memory of this rank that another thread may be reading.
std::vector<std::byte> read_aside(Engine& engine) {
  std::vector<std::byte> all;
  const auto add = [&](const void* data, std::size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    all.insert(all.end(), from, from + bytes);
  };
  Progress progress;
  for (const StoredTensor& tensor : tensors_to_save(engine, progress))
    for (const StoredPiece& piece : tensor.pieces)
      if (tensor.device != nullptr)
        add(piece.data, static_cast<std::size_t>(piece.count) * size_of(tensor.dtype));
  const ParameterStorage& storage = engine.instance().storage();
  for (const Parameter& p : storage.parameters().parameters()) {
    const TensorView view = storage.compared(p).first;
    add(view.data, view.bytes());
  }
  return all;
}

template <class Run>
void stays_until_the_update(Run& run, const std::string& what) {
  Engine& engine = run.engine();
  run.step();
  const std::vector<std::byte> before = read_aside(engine);
  int calls = 0;
  bool same = false;
  engine.before_update([&](const Stream&) {
    ++calls;
    same = read_aside(engine) == before;
  });
  run.step();
  EXPECT_ALL_RANKS(same) << what;
  EXPECT_ALL_RANKS(read_aside(engine) != before) << what << ": nothing was updated";
  run.step();
  EXPECT_ALL_RANKS(calls == 1) << what << ": once for each time it was asked for";
}

TEST(BeforeUpdate, NothingThatIsSavedHasChanged) {
  const int n = world_size();
  std::vector<GridLayout> list{{}};
  if (n > 1)
    for (const int stage : {1, 2, 3}) list.push_back({.zero = {.stage = stage}});
  if (n == 4) list.push_back({.zero = {.stage = 3, .group = 2}});
  if (n % 2 == 0) {
    list.push_back({.pipeline = 2});
    list.push_back({.tensor = 2, .sequence = true, .zero = {.stage = 1}});
    list.push_back({.context = 2});
  }
  Meshes meshes;
  for (const GridLayout& grid : list)
    for (const char* precision : {"fp32", "bf16-mixed"}) {
      const EngineOptions options =
          laid_out(engine_options(tiny_llama(), precision, 1), grid, 2 * grid.data());
      EngineRun run(options, meshes.of(grid));
      stays_until_the_update(run, grid.to_string() + " " + precision);
    }
}

TEST(BeforeUpdate, RunningStatisticsHaveNotChanged) {
  Meshes meshes;
  for (const int stage : {0, 2}) {
    const GridLayout grid{.zero = {.stage = stage}};
    SpeechRun run(laid_out(speech_options(batch_normed(), "fp32", 1), grid, 2 * grid.data()),
                  meshes.of(grid));
    stays_until_the_update(run, grid.to_string());
  }
}

// An error of the wait is an error of the step, and the state is unchanged.
TEST(BeforeUpdate, AnErrorLeavesTheState) {
  const GridLayout grid;
  Meshes meshes;
  EngineRun run(laid_out(engine_options(tiny_gpt(), "fp32", 1), grid, grid.data()),
                meshes.of(grid));
  run.step();
  const std::vector<std::byte> before = read_aside(run.engine());
  run.engine().before_update([](const Stream&) { throw NumericError("weights differ"); });
  std::string text;
  try {
    run.step();
  } catch (const NumericError& error) {
    text = error.what();
  }
  EXPECT_ALL_RANKS(text == "weights differ") << text;
  EXPECT_ALL_RANKS(read_aside(run.engine()) == before);
}

}  // namespace
}  // namespace choir::test
