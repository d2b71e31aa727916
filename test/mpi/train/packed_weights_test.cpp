// Tests of quantised frozen weights (Precision::packing): in every layout they give the losses and
// the gradient norms of one rank, and on one rank the bits of a run whose base is what
// their codes mean.
#include <gtest/gtest.h>

#include <map>

#include "src/parallel/sharding/packed_parameters.hpp"
#include "test/mpi/train/curve.hpp"

namespace choir {
namespace {

struct PackedLayout {
  Layout layout;
  ZeroOptions zero{};
  OffloadOptions offload{};
};

std::vector<PackedLayout> packed_layouts() {
  const int n = test::world_size();
  std::vector<PackedLayout> list;
  for (const int stage : {0, 1, 2, 3}) list.push_back({Layout(1, 1, n, 1), {.stage = stage}});
  list.push_back({Layout(1, 1, n, 1),
                  {.stage = 2},
                  {.place = MemoryPlace::file, .directory = testing::TempDir()}});
  if (4 % n != 0) return list;  // heads
  list.push_back({Layout(n, 1, 1, 1)});
  list.push_back({Layout(1, n, 1, 1), {.stage = 3}});
  list.push_back({Layout(1, 1, 1, n)});
  if (n == 4) list.push_back({Layout(2, 1, 2, 1), {.stage = 3, .prefetch = 0}});
  if (n == 4) list.push_back({Layout(2, 2, 1, 1)});
  return list;
}

/// Each tensor rank has whole blocks of every row.
EngineOptions on_packed_base(const char* precision, Packing packing) {
  GptConfig model = test::tiny_llama();
  model.n_layer = 4;
  model.n_embd = model.ffn_width = 4 % test::world_size() == 0 ? 64 * test::world_size() : 64;
  model.lora = {.rank = 2, .alpha = 4, .targets = {"all"}};
  EngineOptions options = test::engine_options(model, precision, test::kMicroBatches);
  options.precision = with_packing(options.precision, packing);
  // A layer has trained, packed and other weights.
  options.freezing.unfreeze = {"*norm*", "*feed_forward.output.weight"};
  options.grad_clip = 0.5;
  return options;
}

/// The values of packed parameters, by name.
std::map<std::string, std::vector<float>> values_of_codes(test::EngineRun& run) {
  ModelInstance& instance = run.engine().instance();
  std::map<std::string, std::vector<float>> all;
  for (const Bucket& bucket : instance.parameters().buckets()) {
    if (!bucket.packed) continue;
    std::vector<float> values(static_cast<std::size_t>(bucket.size));
    instance.storage().packed()->unpack(instance.stream(), bucket,
                                        {values.data(), DType::f32, {bucket.size}});
    for (const Parameter* p : bucket.parameters)
      all[p->name] = {values.begin() + p->offset, values.begin() + p->offset + p->local_count()};
  }
  return all;
}

TEST(PackedWeights, AreABaseOfWhatTheirCodesMean) {
  for (const Packing packing : {Packing::nf4, Packing::int8}) {
    test::SingleRank single;
    test::EngineRun packed(on_packed_base("fp64", packing), *single.mesh);
    const auto values = values_of_codes(packed);
    ASSERT_EQ(values.size(), 4U * 3U) << "qkv, output and input of each layer";
    test::EngineRun plain(on_packed_base("fp64", Packing::none), *single.mesh);
    double change = 0;
    for (const auto& [name, of] : values)
      for (Parameter& p : plain.engine().instance().parameters().parameters())
        for (std::int64_t i = 0; p.name == name && i < p.local_count(); ++i) {
          double& master = p.master.as<double>()[i];
          const double value = of[static_cast<std::size_t>(i)];
          change = std::max(change, std::abs(master - value));
          master = value;
        }
    EXPECT_GT(change, 0) << "the comparison can fail";
    plain.engine().instance().publish();
    test::Curve a, b;
    test::take_steps(packed, 5, a);
    test::take_steps(plain, 5, b);
    EXPECT_TRUE(test::same_bits(a.losses, b.losses));
    EXPECT_TRUE(test::same_bits(a.norms, b.norms));
  }
}

TEST(PackedWeights, TheSameInEveryLayout) {
  for (const Packing packing : {Packing::nf4, Packing::int8}) {
    const test::Curve one = test::alone(on_packed_base("fp64", packing), 3);
    for (const PackedLayout& each : packed_layouts()) {
      if (test::kMicroBatches % each.layout.size(Axis::data) != 0) continue;
      EngineOptions options = on_packed_base("fp64", packing);
      options.zero = each.zero;
      options.offload = each.offload;
      const auto mesh = Mesh::over_world(each.layout, Transport::automatic);
      const test::Curve many = test::train(options, *mesh, 3);
      EXPECT_ALL_RANKS(test::distance(one.losses, many.losses) <= 1e-12)
          << each.layout.to_string() << " stage " << each.zero.stage;
      EXPECT_ALL_RANKS(test::distance(one.norms, many.norms) <= 1e-12)
          << each.layout.to_string() << " stage " << each.zero.stage;
    }
  }
}

// An element of 4-bit codes takes half a byte, and a block takes one for its scale.
TEST(PackedWeights, TheMemoryOfTheirCodes) {
  const int n = test::world_size();
  for (const int stage : {0, 3}) {
    EngineOptions options = on_packed_base("bf16-mixed", Packing::nf4);
    options.micro_batches = 1;
    options.zero = {.stage = stage};
    const std::int64_t c = options.model.as<GptConfig>().n_embd;
    const double elements = 4.0 * static_cast<double>(c * c) * (2 + 1 + 2);
    const double slices = stage == 3 ? n : 1;
    const auto bytes =
        static_cast<double>(plan_step(options, Layout(1, 1, n, 1), test::world_rank(), n, false)
                                .memory.bytes_of("parameters, packed"));
    const double tables = 4 * 272, groups = 4 * (elements / 16384 + 2 * 16);
    EXPECT_ALL_RANKS(bytes >= elements / slices * (0.5 + 1.0 / 64)) << bytes;
    EXPECT_ALL_RANKS(bytes <= elements / slices * (0.5 + 1.0 / 64) + tables + groups) << bytes;
  }
}

}  // namespace
}  // namespace choir
