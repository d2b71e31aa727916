// Tests that layers shared by any number of ranks train like one rank that each process runs alone.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/token_data.hpp"
#include "src/store/collectives.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/mpi/train/tensor_case.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

using test::alone;
using test::Curve;
using test::expect_equal;
using test::gpt;
using test::layouts;
using test::llama;
using test::loss_of_validation;
using test::mesh_of;
using test::options_of;
using test::train;

void expect_same_training(const GptConfig& model, const std::string& name) {
  const Curve one = alone(options_of(model, false));
  ASSERT_ALL_RANKS(one.norms.front() > 0.5) << "the first steps are clipped";
  for (const Layout& layout : layouts())
    for (const bool sequence : {false, true}) {
      const auto mesh = mesh_of(layout);
      expect_equal(one, train(options_of(model, sequence), *mesh),
                   name + ", " + layout.to_string() + (sequence ? ", sequence" : ""));
    }
}

TEST(TensorParallel, GptTrainsTheSameInFp64) {
  GptConfig tanh = gpt();
  tanh.activation = ops::Activation::gelu_tanh;
  expect_same_training(gpt(), "gelu");
  expect_same_training(tanh, "gelu_tanh");
}

TEST(TensorParallel, LlamaTrainsTheSameInFp64) {
  expect_same_training(llama(12), "a head of keys and values for each");
  expect_same_training(llama(1), "one for all");  // held by every rank
  // Heads of keys and values: divided among two ranks, two copies of them for four; three for
  // three.
  expect_same_training(llama(test::world_size() == 3 ? 3 : 2), "grouped");
}

// Label smoothing spreads a share of each target over 19 symbols, and ranks hold unequal parts of
// them.
TEST(TensorParallel, SmoothedLabelsTrainTheSameInFp64) {
  GptConfig tied = gpt(), untied = llama(1);
  tied.label_smoothing = untied.label_smoothing = 0.1;
  expect_same_training(tied, "tied");
  expect_same_training(untied, "untied");
}

TEST(TensorParallel, MpiAloneTrainsTheSame) {
  const Curve one = alone(options_of(llama(1), false), 5);
  for (const Layout& layout : layouts()) {
    const auto mesh = mesh_of(layout, Transport::mpi);
    expect_equal(one, train(options_of(llama(1), true), *mesh, 5), layout.to_string());
  }
}

// Precisions of everyday use: the terms of a sum are rounded separately.
TEST(TensorParallel, OtherPrecisionsTrainNearlyTheSame) {
  for (const char* precision : {"fp32", "bf16-mixed", "fp16-mixed"}) {
    EngineOptions options = options_of(gpt(), false);
    options.precision = precision_of(precision);
    const bool f16 = options.precision.compute == DType::f16;
    if (f16) options.loss_scaling = {.start = 65536, .window = 2000};
    const Curve one = alone(options);
    for (const Layout& layout : layouts()) {
      options.sequence = true;
      const auto mesh = mesh_of(layout);
      const Curve many = train(options, *mesh);
      // Roundings of 2^-24, 2^-8 and 2^-11 in every activation; losses are near 3.
      const double tolerance = options.precision.compute == DType::f32 ? 1e-4
                               : f16                                   ? 0.05 / 8
                                                                       : 0.05;
      EXPECT_ALL_RANKS(test::distance(one.losses, many.losses) <= tolerance)
          << precision << " " << test::distance(one.losses, many.losses);
    }
  }
}

// The numbers do not depend on which rank of the job has which part.
TEST(TensorParallel, ReproducibleInAnyOrderOfRanks) {
  if (test::world_size() != 4) GTEST_SKIP() << "needs four ranks";
  EngineOptions options = options_of(llama(1), true);
  options.precision = precision_of("fp32");
  options.reproducible = true;
  const auto near = mesh_of(Layout(2, 1, 2, 1));
  const auto far = mesh_of(Layout(2, 1, 2, 1, "dp-tp-cp-pp"), Transport::mpi);
  const Curve a = train(options, *near, 5), b = train(options, *far, 5);
  EXPECT_ALL_RANKS(test::same_bits(a.losses, b.losses));
  EXPECT_ALL_RANKS(test::same_bits(a.state, b.state));
}

// The step uses exactly the memory that the null device planned, on every rank.
TEST(TensorParallel, ThePlanIsExact) {
  for (const Layout& layout : layouts())
    for (const bool sequence : {false, true}) {
      const auto mesh = mesh_of(layout);
      test::EngineRun run(options_of(gpt(), sequence), *mesh);
      run.losses(2);
      EXPECT_ALL_RANKS(run.engine().instance().arena().peak() == run.plan().arena_bytes);
      const auto& planned = run.plan().memory.entries;
      const MemoryPlan used = run.engine().memory();
      bool same = planned.size() == used.entries.size();
      for (std::size_t i = 0; same && i < planned.size(); ++i)
        same = planned[i].bytes == used.entries[i].bytes;
      EXPECT_ALL_RANKS(same);
    }
}

TEST(TensorParallel, SharesShrinkWhatIsKept) {
  if (test::world_size() == 1) GTEST_SKIP() << "needs another rank";
  const auto peak = [](const Layout& layout, bool sequence) {
    EngineOptions options = options_of(gpt(), sequence);
    options.model.as<GptConfig>().n_layer = 8;
    return plan_step(options, layout, 0, 1, false).arena_bytes;
  };
  const Layout layout(test::world_size(), 1, 1, 1);
  EXPECT_LT(peak(layout, false), peak(Layout(), false));
  EXPECT_LT(peak(layout, true), peak(layout, false));
}

TEST(TensorParallel, EvaluatesTheSame) {
  test::SingleRank single;
  for (GptConfig model : {gpt(), llama(1)}) {
    const double one = loss_of_validation(options_of(model, false), *single.mesh);
    model.label_smoothing = 0.2;  // only while training
    for (const Layout& layout : layouts())
      for (const bool sequence : {false, true}) {
        const auto mesh = mesh_of(layout);
        EXPECT_ALL_RANKS(std::abs(loss_of_validation(options_of(model, sequence), *mesh) - one) <=
                         1e-12);
      }
  }
}

std::vector<std::int32_t> generated_text(const EngineOptions& options, Mesh& mesh, bool greedy) {
  const StepPlan plan = plan_step(options, mesh.layout(), mesh.rank(), mesh.node().size(), true);
  test::EngineRun run(options, mesh, plan.arena_bytes);
  run.losses(3);
  return Generator(run.engine().instance())
      .generate({1, 2, 3}, 20, {.temperature = greedy ? 0.0 : 1.0, .seed = 3});
}

TEST(TensorParallel, GeneratesTheSame) {
  test::SingleRank single;
  for (const GptConfig& model : {gpt(), llama(1)})
    for (const bool greedy : {true, false}) {
      const auto one = generated_text(options_of(model, false), *single.mesh, greedy);
      for (const Layout& layout : layouts()) {
        const auto mesh = mesh_of(layout);
        EngineOptions options = options_of(model, true);
        options.micro_batches /= layout.size(Axis::data);
        EXPECT_ALL_RANKS(generated_text(options, *mesh, greedy) == one);
      }
    }
}

// Checkpoints are saved in one layout and loaded in any other, to the bit.
TEST(TensorParallel, CheckpointsHaveNoLayout) {
  const auto world = mesh_of(Layout(1, 1, test::world_size(), 1));
  std::unique_ptr<test::TemporaryDirectory> folder;
  std::string path;
  if (world->rank() == 0) {
    folder = std::make_unique<test::TemporaryDirectory>();
    path = folder->path() + "/checkpoints";
  }
  share_text(world->world(), path);
  std::vector<Layout> all = layouts();
  all.push_back(Layout(1, 1, test::world_size(), 1));
  std::int64_t step = 0;
  for (const GptConfig& model : {gpt(), llama(1)})
    for (const Layout& from : all) {
      const auto mesh = mesh_of(from);
      EngineOptions options = options_of(model, false);
      options.micro_batches = 1;
      test::EngineRun run(options, *mesh);
      run.losses(3);
      Progress progress{.step = ++step, .consumed_samples = 36};
      CheckpointStore store(path, mesh->world());
      EXPECT_ALL_RANKS(
          store.save({.step = step, .json = "{}"}, tensors_to_save(run.engine(), progress)).saved);
      const std::vector<double> saved = run.state();
      for (const Layout& to : all) {
        const auto other = mesh_of(to);
        options.sequence = true;
        test::EngineRun loaded(options, *other);
        Progress restored;
        CheckpointStore reader(path, other->world());
        const auto found = reader.find_newest_valid();
        ASSERT_ALL_RANKS(found.has_value());
        reader.load(*found, tensors_to_load(loaded.engine(), restored));
        EXPECT_ALL_RANKS(test::same_bits(saved, loaded.state()))
            << from.to_string() << " -> " << to.to_string();
        require_equal_parameters(loaded.engine(), "parameters");
        EXPECT_ALL_RANKS(restored.step == step && restored.consumed_samples == 36);
      }
      mesh->world().barrier();
    }
}

}  // namespace
}  // namespace choir
