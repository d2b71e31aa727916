// Tests of checkpoints that are saved in any layout and loaded in any other: every element of every
// logical tensor is stored once.
#include <gtest/gtest.h>
#include <hdf5.h>

#include <array>
#include <set>

#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/token_data.hpp"
#include "src/store/collectives.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/mpi/train/curve.hpp"
#include "test/mpi/train/layout_case.hpp"
#include "test/support/exhaustive.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

using test::GridLayout;
using test::kMicroBatches;
using test::LogicalState;

/// Four layers: two stages of two pieces. 19 symbols: the tensor axis pads them.
GptConfig four_layers(GptConfig c) {
  c.n_layer = 4;
  return c;
}

/// Layouts of this number of ranks; each axis has several ranks in some of them, with and without
/// the others.
std::vector<GridLayout> checkpoint_grids() {
  const ZeroOptions one{.stage = 1}, two{.stage = 2}, three{.stage = 3};
  const PipelineOptions interleaved{ScheduleKind::interleaved, 2}, zb{ScheduleKind::zb_h1, 1};
  std::vector<GridLayout> list{{}, {.zero = one}, {.zero = two}, {.zero = three}};
  const int ranks = test::world_size();
  if (ranks % 2 == 0) {
    list.push_back({.pipeline = 2});
    list.push_back({.pipeline = 2, .zero = three, .cut = interleaved});
    list.push_back({.tensor = 2, .sequence = true});
    list.push_back({.context = 2});
    list.push_back({.context = 2, .zero = three});
  }
  if (ranks % 4 == 0) {
    list.push_back({.pipeline = 4, .cut = zb});
    list.push_back({.tensor = 4});
    list.push_back({.pipeline = 2, .tensor = 2, .cut = interleaved});
    list.push_back({.pipeline = 2, .context = 2, .zero = two});
    list.push_back({.tensor = 2, .context = 2});
    list.push_back({.tensor = 2, .zero = three});
    list.push_back({.zero = {.stage = 3, .group = 2}});
    list.push_back({.pipeline = 2, .zero = one, .cut = zb});
  }
  return list;
}

/// "parameters/blocks.0.attention.qkv.weight [96, 32]" for every tensor of a checkpoint of this
/// model, from the shapes of the model alone.
std::set<std::string> expected_datasets(const GptConfig& c, bool loss_scale) {
  std::set<std::string> list;
  const auto add = [&](const std::string& name, const Shape& shape) {
    for (const char* kind : {"parameters", "optimizer/m", "optimizer/v"})
      list.insert(fmt::format("{}/{} {}", kind, name, to_string(shape)));
  };
  const bool layernorm = c.norm == ops::Norm::layernorm;
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", {c.n_embd});
    if (layernorm && c.bias) add(name + ".bias", {c.n_embd});
  };
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    add(name + ".weight", {out, in});
    if (c.bias) add(name + ".bias", {out});
  };
  const std::int64_t head_width = c.n_embd / c.n_head;
  add("embedding.tokens.weight", {c.vocab_size, c.n_embd});
  if (c.position == Position::learned) add("embedding.positions.weight", {c.block_size, c.n_embd});
  for (std::int64_t l = 0; l < c.n_layer; ++l) {
    const std::string block = fmt::format("blocks.{}.", l);
    norm(block + "attention_norm");
    linear(block + "attention.qkv", c.n_embd + 2 * c.n_kv_head * head_width, c.n_embd);
    linear(block + "attention.output", c.n_embd, c.n_embd);
    norm(block + "feed_forward_norm");
    const bool gated = c.activation == ops::Activation::swiglu;
    linear(block + "feed_forward.input", (gated ? 2 : 1) * c.ffn_width, c.n_embd);
    linear(block + "feed_forward.output", c.n_embd, c.ffn_width);
  }
  norm("final_norm");
  if (!c.tied) add("head.weight", {c.vocab_size, c.n_embd});
  std::vector<std::string> scalars{"step", "updates", "consumed_samples", "skipped_in_a_row",
                                   "best_val_loss"};
  if (loss_scale) scalars.insert(scalars.end(), {"loss_scale", "loss_scale_good_steps"});
  for (const std::string& name : scalars) list.insert("state/" + name + " " + to_string(Shape{1}));
  return list;
}

void list_datasets(hid_t group, const std::string& prefix, std::set<std::string>& list) {
  hsize_t count = 0;
  EXPECT_GE(H5Gget_num_objs(group, &count), 0);
  for (hsize_t i = 0; i < count; ++i) {
    std::array<char, 256> name{};
    H5Gget_objname_by_idx(group, i, name.data(), name.size());
    const std::string path = prefix + name.data();
    if (H5Gget_objtype_by_idx(group, i) == H5G_GROUP) {
      const hid_t inner = H5Gopen2(group, name.data(), H5P_DEFAULT);
      list_datasets(inner, path + "/", list);
      H5Gclose(inner);
      continue;
    }
    const hid_t set = H5Dopen2(group, name.data(), H5P_DEFAULT), space = H5Dget_space(set);
    std::array<hsize_t, 2> dims{};
    const int rank = H5Sget_simple_extent_dims(space, dims.data(), nullptr);
    const auto extent = [&](std::size_t d) { return static_cast<std::int64_t>(dims[d]); };
    const Shape shape = rank == 1 ? Shape{extent(0)} : Shape{extent(0), extent(1)};
    list.insert(path + " " + to_string(shape));
    H5Sclose(space);
    H5Dclose(set);
  }
}

/// The same list for a file, read by HDF5.
std::set<std::string> datasets_of(const std::string& path) {
  std::set<std::string> list;
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  list_datasets(file, "", list);
  H5Fclose(file);
  return list;
}

/// True if the padding of local tensors, which no checkpoint stores, is zero.
bool padding_is_zero(test::EngineRun& run) {
  const ParameterStorage& storage = run.engine().instance().storage();
  if (storage.sharding().slices() > 1) return true;  // slices have no padding of their own to see
  for (const Parameter& p : run.engine().instance().parameters().parameters()) {
    std::vector<bool> logical(static_cast<std::size_t>(p.local_count()), false);
    for (const ShardRun& part : shard_runs(p))
      std::fill_n(logical.begin() + part.local, part.count, true);
    const TensorView own = storage.owned_part(storage.masters(storage.bucket_of(p)), p);
    for (std::int64_t i = 0; i < p.local_count(); ++i)
      if (!logical[static_cast<std::size_t>(i)] && ref::load(own.data, own.dtype, i) != 0)
        return false;
  }
  return true;
}

/// Checkpoints of the world in a folder that all ranks can read.
struct Checkpoints {
  explicit Checkpoints(Communicator& world) {
    if (world.rank() == 0) {
      folder = std::make_unique<test::TemporaryDirectory>();
      path = folder->path() + "/checkpoints";
    }
    share_text(world, path);
  }

  Checkpoint save(test::EngineRun& run, Progress& progress) {
    CheckpointStore store(path, run.mesh().world(), {.retention = {.keep_last = 1}});
    const SaveResult result =
        store.save({.step = ++saves, .json = "{}"}, tensors_to_save(run.engine(), progress));
    EXPECT_ALL_RANKS(result.saved) << result.reason;
    return *store.find_newest_valid();
  }
  /// The run continues from the checkpoint.
  static void load(const Checkpoint& checkpoint, test::EngineRun& run) {
    Progress progress;
    load_checkpoint(checkpoint, tensors_to_load(run.engine(), progress), run.mesh().world());
    run.engine().instance().publish();
    run.engine().resume(progress.update_state());
    run.start_at(progress.step);
  }

  std::unique_ptr<test::TemporaryDirectory> folder;
  std::string path;
  std::int64_t saves = 0;
};

class CheckpointGrid : public testing::TestWithParam<const char*> {};

// Three other layouts, and one single rank, read the checkpoint of each layout.
TEST_P(CheckpointGrid, AnyLayoutWritesAnyReads) {
  test::Meshes meshes;
  Checkpoints checkpoints(meshes.of({}).world());
  const std::vector<GridLayout> all = checkpoint_grids();
  const bool fp64 = std::string_view(GetParam()) == "fp64";
  std::size_t pass = fp64 ? 0 : 1;  // two passes per precision; each takes half the readers
  for (const GptConfig& model : {four_layers(test::tiny_gpt()), four_layers(test::tiny_llama())}) {
    const EngineOptions options = test::engine_options(model, GetParam(), kMicroBatches);
    const std::int64_t batch = kMicroBatches * test::world_size();
    test::Deal readers(pass++, 2);
    for (std::size_t from = 0; from < all.size(); ++from) {
      test::EngineRun run(test::laid_out(options, all[from], batch), meshes.of(all[from]));
      run.losses(2);
      Progress progress{.step = 2, .updates = 2};
      const Checkpoint checkpoint = checkpoints.save(run, progress);
      const std::string file = checkpoint.path + "/state.h5", writer = all[from].to_string();
      EXPECT_ALL_RANKS(run.mesh().rank() != 0 ||
                       datasets_of(file) == expected_datasets(model, false))
          << writer << ": padding or copies in the file";
      EXPECT_ALL_RANKS(padding_is_zero(run)) << writer;
      const LogicalState saved = test::logical_state(run);
      EXPECT_ALL_RANKS(test::holds(run, saved)) << writer;
      const StepResult next = run.step();
      const LogicalState after = test::logical_state(run);

      const auto read_by = [&](const EngineOptions& reading, Mesh& mesh, const std::string& text) {
        test::EngineRun reader(reading, mesh);
        EXPECT_ALL_RANKS(!test::holds(reader, saved)) << "before loading they differ";
        Checkpoints::load(checkpoint, reader);
        EXPECT_ALL_RANKS(test::holds(reader, saved)) << text;
        const std::string different = test::first_difference(saved, test::logical_state(reader));
        EXPECT_ALL_RANKS(different.empty()) << text << ": " << different;
        EXPECT_ALL_RANKS(padding_is_zero(reader)) << text;
        if (!fp64) return;
        const StepResult here = reader.step();
        EXPECT_ALL_RANKS(std::abs(here.loss - next.loss) <= 1e-12) << text;
        EXPECT_ALL_RANKS(std::abs(here.grad_norm - next.grad_norm) <= 1e-12) << text;
        EXPECT_ALL_RANKS(test::distance(after, test::logical_state(reader)) <= 1e-12) << text;
      };
      for (const std::size_t hop : {1, 3, 5}) {
        if (!readers.takes()) continue;
        const GridLayout& to = all[(from + hop) % all.size()];
        read_by(test::laid_out(options, to, batch), meshes.of(to),
                writer + " -> " + to.to_string());
      }
      if (readers.takes()) {
        test::SingleRank single;
        EngineOptions alone = options;
        alone.micro_batches = batch;
        read_by(alone, *single.mesh, writer + " -> one rank");
      }
      meshes.of({}).world().barrier();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, CheckpointGrid, testing::Values("fp64", "bf16-mixed"),
                         [](const auto& precision) {
                           return std::string(precision.param).substr(0, 4);
                         });

// Every layout reads a checkpoint that one rank wrote.
TEST(CheckpointLayouts, OneRankWritesAllRead) {
  test::Meshes meshes;
  Communicator& world = meshes.of({}).world();
  Checkpoints checkpoints(world);
  const std::int64_t batch = kMicroBatches * test::world_size();
  for (const GptConfig& model : {four_layers(test::tiny_gpt()), four_layers(test::tiny_llama())}) {
    const EngineOptions options = test::engine_options(model, "fp64", batch);
    test::SingleRank single;
    test::EngineRun one(options, *single.mesh);
    one.losses(2);
    Progress progress{.step = 2, .updates = 2};
    CheckpointStore store(checkpoints.path, one.mesh().world());
    bool good = true;
    if (test::world_rank() == 0)
      good = store.save({.step = 1, .json = "{}"}, tensors_to_save(one.engine(), progress)).saved;
    EXPECT_ALL_RANKS(good);
    const LogicalState saved = test::logical_state(one);
    const Checkpoint checkpoint = *find_newest_valid(checkpoints.path, world);
    const double loss = one.step().loss;
    for (const GridLayout& layout : checkpoint_grids()) {
      test::EngineRun run(test::laid_out(options, layout, batch), meshes.of(layout));
      Checkpoints::load(checkpoint, run);
      EXPECT_ALL_RANKS(test::holds(run, saved)) << layout.to_string();
      EXPECT_ALL_RANKS(std::abs(run.step().loss - loss) <= 1e-12) << layout.to_string();
    }
  }
}

// A run with Muon, whose matrices have one moment, and owners that are others in each layout,
// continues in another one as it would have in its own.
TEST(CheckpointLayouts, MuonContinuesInAnother) {
  test::Meshes meshes;
  Checkpoints checkpoints(meshes.of({}).world());
  const std::vector<GridLayout> all = checkpoint_grids();
  const std::int64_t batch = kMicroBatches * test::world_size();
  EngineOptions options =
      test::engine_options(four_layers(test::tiny_llama()), "fp64", kMicroBatches);
  options.optimizer.rule = &update_rule("muon");
  test::Deal readers(0, 9);
  for (std::size_t from = 0; from < all.size(); ++from) {
    test::EngineRun run(test::laid_out(options, all[from], batch), meshes.of(all[from]));
    run.losses(2);
    Progress progress{.step = 2, .updates = 2};
    const Checkpoint checkpoint = checkpoints.save(run, progress);
    const LogicalState saved = test::logical_state(run);
    EXPECT_ALL_RANKS(saved.contains("optimizer/m/blocks.0.attention.qkv.weight") &&
                     !saved.contains("optimizer/v/blocks.0.attention.qkv.weight") &&
                     saved.contains("optimizer/v/head.weight"));
    const std::vector<double> losses = run.losses(2);
    const LogicalState after = test::logical_state(run);
    for (std::size_t to = 0; to < all.size(); ++to) {
      if (to == from || !readers.takes()) continue;
      const std::string text = all[from].to_string() + " -> " + all[to].to_string();
      test::EngineRun reader(test::laid_out(options, all[to], batch), meshes.of(all[to]));
      Checkpoints::load(checkpoint, reader);
      EXPECT_ALL_RANKS(test::holds(reader, saved)) << text;
      EXPECT_ALL_RANKS(test::distance(losses, reader.losses(2)) <= 1e-12) << text;
      EXPECT_ALL_RANKS(test::distance(after, test::logical_state(reader)) <= 1e-12) << text;
    }
    meshes.of({}).world().barrier();
  }
}

// Evaluation and generation in the middle of training, which then continues as if they had not
// happened.
TEST(CheckpointLayouts, EvaluationAndTextBetweenSteps) {
  test::Meshes meshes;
  const std::int64_t batch = kMicroBatches * test::world_size();
  for (const GptConfig& model : {four_layers(test::tiny_gpt()), four_layers(test::tiny_llama())}) {
    EngineOptions options = test::engine_options(model, "fp64", batch);
    const auto text_of = [](test::EngineRun& run) {
      return Generator(run.engine().instance()).generate({1, 2, 3}, 20, {.seed = 4});
    };
    test::SingleRank single;
    test::EngineRun one(options, *single.mesh, std::size_t{1} << 20);
    one.losses(2);
    const double value = test::loss_of_validation(one);
    const std::vector<std::int32_t> text = text_of(one);
    const double loss = one.step().loss;
    for (const GridLayout& layout : checkpoint_grids()) {
      test::EngineRun run(test::laid_out(options, layout, batch), meshes.of(layout),
                          std::size_t{1} << 20);
      run.losses(2);
      EXPECT_ALL_RANKS(std::abs(test::loss_of_validation(run) - value) <= 1e-12)
          << layout.to_string();
      EXPECT_ALL_RANKS(text_of(run) == text) << layout.to_string();
      EXPECT_ALL_RANKS(std::abs(run.step().loss - loss) <= 1e-12) << layout.to_string();
    }
  }
}

}  // namespace
}  // namespace choir
