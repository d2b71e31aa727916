// Tests of tensor parallelism and ZeRO together: a rank keeps a slice of its part of every tensor.
// In any layout and stage training is that of one rank that has everything.
#include <gtest/gtest.h>

#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/token_data.hpp"
#include "src/store/collectives.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/mpi/train/curve.hpp"
#include "test/support/exhaustive.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/store/fixtures.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

using test::alone;
using test::Curve;
using test::expect_equal;
using test::kMicroBatches;
using test::train;

/// Layouts of all ranks with every tensor size except 1, in which data ranks divide the
/// micro-batches.
std::vector<Layout> zero_layouts() {
  std::vector<Layout> list;
  for (const int t : {2, 4})
    if (test::world_size() % t == 0 && kMicroBatches % (test::world_size() / t) == 0)
      list.push_back(Layout(t, 1, test::world_size() / t, 1));
  return list;
}

std::vector<ZeroOptions> stages() {
  return {{.stage = 0}, {.stage = 1}, {.stage = 2}, {.stage = 3}, {.stage = 3, .prefetch = 0}};
}

std::string name_of_sharding(const Layout& layout, const ZeroOptions& zero) {
  return fmt::format("{} stage {} group {} prefetch {}", layout.to_string(), zero.stage, zero.group,
                     zero.prefetch);
}

/// Sequences of 7: rows do not divide evenly. The vocabulary of 19 is in padded parts; the llama
/// has one K/V head, which every rank holds. Three layers, so that a ring of slots is reused.
GptConfig zero_model(bool llama) {
  GptConfig c = llama ? test::tiny_llama() : test::tiny_gpt();
  c.block_size = 7;
  c.n_layer = 3;
  c.dropout = 0.2;
  if (llama) c.n_kv_head = 1;
  return c;
}

EngineOptions zero_options(const GptConfig& model, const char* precision = "fp64") {
  EngineOptions options = test::engine_options(model, precision, kMicroBatches);
  options.grad_clip = 0.5;  // clips in the first steps
  return options;
}

TEST(ZeroTensor, AnyStageTrainsTheSameInFp64) {
  for (const bool llama : {false, true}) {
    EngineOptions options = zero_options(zero_model(llama));
    const Curve one = alone(options);
    ASSERT_ALL_RANKS(one.norms.front() > 0.5) << "the first steps are clipped";
    test::Deal deal(llama ? 1 : 0, 2);  // each layout and stage with one of the two models
    for (const Layout& layout : zero_layouts())
      for (const bool sequence : {false, true})
        for (const ZeroOptions& zero : stages()) {
          if (!deal.takes()) continue;
          options.sequence = sequence;
          options.zero = zero;
          const auto mesh = Mesh::over_world(layout, Transport::automatic);
          expect_equal(one, train(options, *mesh),
                       name_of_sharding(layout, zero) + (sequence ? ", sequence" : ""));
        }
  }
}

TEST(ZeroTensor, GroupsAndMpiAloneTrainTheSame) {
  EngineOptions options = zero_options(zero_model(true));
  const Curve one = alone(options, 5);
  options.sequence = true;
  for (const Layout& layout : zero_layouts())
    for (const int stage : {1, 2, 3}) {
      options.zero = {.stage = stage, .group = 1};
      const auto near = Mesh::over_world(layout, Transport::automatic);
      expect_equal(one, train(options, *near, 5), name_of_sharding(layout, options.zero));
      options.zero = {.stage = stage};
      const auto far = Mesh::over_world(layout, Transport::mpi);
      expect_equal(one, train(options, *far, 5), name_of_sharding(layout, options.zero));
    }
}

/// Tensors of several norm chunks on each rank, some of which are cut by slices.
GptConfig wide_llama() {
  GptConfig c = zero_model(true);
  c.vocab_size = 2221;
  return c;
}

// The order of sums over the tensor axis is that of its ranks; all else is as on one rank.
TEST(ZeroTensor, SameBitsAtEveryStageInReproducibleMode) {
  std::size_t pass = 0;
  for (const char* precision : {"fp32", "bf16-mixed", "bf16-true", "fp16-mixed"})
    for (const Layout& layout : zero_layouts()) {
      const auto mesh = Mesh::over_world(layout, Transport::automatic);
      EngineOptions options = zero_options(wide_llama(), precision);
      options.reproducible = true;
      const Curve whole = train(options, *mesh, 4);
      std::vector<ZeroOptions> list = stages();
      list.push_back({.stage = 2, .group = 1});
      for (const ZeroOptions& zero : test::dealt(list, pass++)) {
        options.zero = zero;
        const Curve many = train(options, *mesh, 4);
        EXPECT_ALL_RANKS(test::same_bits(whole.losses, many.losses))
            << name_of_sharding(layout, zero);
        EXPECT_ALL_RANKS(test::same_bits(whole.norms, many.norms))
            << name_of_sharding(layout, zero);
        EXPECT_ALL_RANKS(test::same_bits(whole.state, many.state))
            << precision << " " << name_of_sharding(layout, zero);
      }
    }
}

// Slices cut chunks of the norm at other positions than ranks of the tensor axis do.
TEST(ZeroTensor, NormOfSlicesOfPartsIsTheNorm) {
  EngineOptions options = zero_options(wide_llama());
  const Curve one = alone(options, 2);
  for (const Layout& layout : zero_layouts())
    for (const ZeroOptions& zero : stages()) {
      const auto mesh = Mesh::over_world(layout, Transport::automatic);
      options.zero = zero;
      const Curve many = train(options, *mesh, 2);
      EXPECT_ALL_RANKS(test::distance(one.norms, many.norms) <= 1e-13)
          << name_of_sharding(layout, zero);
    }
}

TEST(ZeroTensor, ThePlanIsExact) {
  for (const Layout& layout : zero_layouts())
    for (const ZeroOptions& zero : stages())
      for (const bool reproducible : {false, true}) {
        const auto mesh = Mesh::over_world(layout, Transport::automatic);
        EngineOptions options = zero_options(wide_llama(), "bf16-mixed");
        options.micro_batches = 2;
        options.sequence = true;
        options.reproducible = reproducible;
        options.zero = zero;
        test::EngineRun run(options, *mesh);
        run.losses(2);
        EXPECT_ALL_RANKS(run.engine().instance().arena().peak() == run.plan().arena_bytes);
        const auto& planned = run.plan().memory.entries;
        const MemoryPlan used = run.engine().memory();
        bool same = planned.size() == used.entries.size();
        for (std::size_t i = 0; same && i < planned.size(); ++i)
          same =
              planned[i].name == used.entries[i].name && planned[i].bytes == used.entries[i].bytes;
        EXPECT_ALL_RANKS(same) << name_of_sharding(layout, zero) << "\n"
                               << run.plan().memory.to_string() << "\n"
                               << used.to_string();
      }
}

TEST(ZeroTensor, EvaluatesAndGeneratesTheSame) {
  test::SingleRank single;
  EngineOptions options = zero_options(zero_model(true));
  const auto text = [&](Mesh& mesh) {
    test::EngineRun run(options, mesh, std::size_t{1} << 20);
    return Generator(run.engine().instance()).generate({1, 2, 3}, 20, {.seed = 3});
  };
  const double one = test::loss_of_validation(options, *single.mesh);
  const auto written = text(*single.mesh);
  for (const Layout& layout : zero_layouts())
    for (const ZeroOptions& zero : stages()) {
      const auto mesh = Mesh::over_world(layout, Transport::automatic);
      options.zero = zero;
      EXPECT_ALL_RANKS(std::abs(test::loss_of_validation(options, *mesh) - one) <= 1e-12);
      EXPECT_ALL_RANKS(text(*mesh) == written) << name_of_sharding(layout, zero);
    }
}

/// A layout and ZeRO stage to which a run may be moved.
struct Place {
  Layout layout;
  ZeroOptions zero;
};

// Saved in any layout, loaded in any other, to the bit: the state must be that of one rank that ran
// alone.
TEST(ZeroTensor, CheckpointsKnowNeitherLayoutNorStage) {
  const auto world = Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic);
  std::unique_ptr<test::TemporaryDirectory> folder;
  std::string path;
  if (world->rank() == 0) {
    folder = std::make_unique<test::TemporaryDirectory>();
    path = folder->path() + "/checkpoints";
  }
  share_text(world->world(), path);
  std::vector<Place> places;
  for (const Layout& layout : zero_layouts())
    for (const int stage : {0, 1, 3}) places.push_back({layout, {.stage = stage}});
  if (places.empty()) GTEST_SKIP() << "needs two or four ranks";
  for (const int stage : {0, 2}) places.push_back({world->layout(), {.stage = stage}});
  EngineOptions options = zero_options(zero_model(true));
  const Curve one = alone(options, 3);
  std::int64_t saved = 0;
  for (const Place& from : places) {
    const auto mesh = Mesh::over_world(from.layout, Transport::automatic);
    options.zero = from.zero;
    options.micro_batches = kMicroBatches / from.layout.size(Axis::data);
    test::EngineRun run(options, *mesh);
    run.losses(3);
    Progress progress{.step = ++saved};
    CheckpointStore store(path, mesh->world());
    ASSERT_ALL_RANKS(
        store.save({.step = saved, .json = "{}"}, tensors_to_save(run.engine(), progress)).saved);
    const std::vector<double> there = run.state();
    EXPECT_ALL_RANKS(test::distance(one.state, there) <= 1e-12);
    for (const Place& to : places) {
      const auto other = Mesh::over_world(to.layout, Transport::automatic);
      options.zero = to.zero;
      options.micro_batches = kMicroBatches / to.layout.size(Axis::data);
      test::EngineRun next(options, *other);
      Progress restored;
      CheckpointStore reader(path, other->world());
      const auto found = reader.find_newest_valid();
      ASSERT_ALL_RANKS(found.has_value());
      reader.load(*found, tensors_to_load(next.engine(), restored));
      next.engine().instance().publish();
      EXPECT_ALL_RANKS(restored.step == saved);
      EXPECT_ALL_RANKS(test::same_bits(there, next.state()))
          << name_of_sharding(from.layout, from.zero) << " -> "
          << name_of_sharding(to.layout, to.zero);
      require_equal_parameters(next.engine(), "parameters after loading");
    }
  }
}

// Changes one element of one norm on one rank, in the memory where that rank keeps it.
TEST(ZeroTensor, RanksThatDriftApartAreSeen) {
  EngineOptions options = zero_options(zero_model(true));
  for (const Layout& layout : zero_layouts())
    for (const ZeroOptions& zero : stages()) {
      options.zero = zero;
      const auto mesh = Mesh::over_world(layout, Transport::automatic);
      test::EngineRun run(options, *mesh);
      require_equal_parameters(run.engine(), "parameters");
      ParameterStorage& storage = run.engine().instance().storage();
      for (const Parameter& p : storage.parameters().parameters()) {
        if (p.name != "final_norm.weight") continue;
        const TensorView own = storage.owned_part(storage.masters(storage.bucket_of(p)), p);
        if (own.count() > 0 && mesh->coordinates()[Axis::tensor] == 0) *own.as<double>() += 1e-9;
      }
      EXPECT_THROW(require_equal_parameters(run.engine(), "parameters"), CommError)
          << name_of_sharding(layout, zero);
    }
}

}  // namespace
}  // namespace choir
