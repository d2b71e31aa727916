#include "src/lab/bench/bench_shapes.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "choir/models/family.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/gpt/token_data.hpp"
#include "test/support/families.hpp"

namespace choir {
namespace {

constexpr std::int64_t kSymbols = 37;

DeckWork work_of(const Deck& deck) {
  CpuDevice device;
  Logger log(false);
  const auto mesh = Mesh::planned(Layout(), 0, 1);
  return work_of(deck, kSymbols, *mesh, device, log);
}

double flops_of(const DeckWork& work) {
  double flops = 0;
  for (const auto& [type, gemms] : work.gemms)
    for (const StepGemm& g : gemms) flops += g.flops() * static_cast<double>(g.calls);
  return flops;
}

bool has(const DeckWork& work, const std::string& name) {
  return std::ranges::any_of(work.gemms, [&](const auto& of_type) {
    return std::ranges::any_of(of_type.second,
                               [&](const StepGemm& g) { return g.name.find(name) == 0; });
  });
}

const char* const kGpt = R"({
  "model": {"n_layer": 2, "n_embd": 48, "n_head": 4, "n_kv_head": 2, "ffn_width": 80,
            "block_size": 16},
  "data": {"train": ["nowhere.txt"]}, "train": {"micro_batch_size": 3, "precision": "fp32"}})";

TEST(DeckWork, ProductsOfAGptAddUpToItsFloor) {
  const DeckWork work = work_of(parse_deck(test::families(), kGpt, "deck.json", {}));
  EXPECT_EQ(work.shape.samples, 3);
  GptConfig c = work.model.as<GptConfig>();
  EXPECT_EQ(c.vocab_size, kSymbols);
  // The head is padded to this size; the products of the floor are those of a step.
  c.vocab_size = 40;
  EXPECT_DOUBLE_EQ(flops_of(work), step_work(c, precision_of("fp32"), 3, 0).gemm_flops);
}

TEST(DeckWork, ProductsAreCalledByTheirWeights) {
  const DeckWork work = work_of(parse_deck(test::families(), kGpt, "deck.json", {}));
  for (const char* name : {"blocks.*.attention.qkv forward", "blocks.*.attention.qkv d_input",
                           "blocks.*.attention.qkv d_weight", "blocks.*.feed_forward.output "})
    EXPECT_TRUE(has(work, name)) << name;
  EXPECT_FALSE(has(work, "product"));
  ASSERT_EQ(work.attention.size(), 1u);
  const AttentionShape& a = work.attention[0];
  EXPECT_EQ((std::vector{a.batch, a.heads, a.kv_heads, a.head_width, a.tokens, a.calls}),
            (std::vector<std::int64_t>{3, 4, 2, 12, 16, 2}));
  EXPECT_TRUE(a.causal);
}

/// One model of each family, by its deck for `choir verify`.
class OfAFamily : public testing::TestWithParam<const char*> {};

TEST_P(OfAFamily, EveryProductAndAllAttentionAreMeasured) {
  CpuDevice device;
  const DeckWork work = work_of(read_deck(test::families(), GetParam(), {}));
  ASSERT_FALSE(work.gemms.empty());
  for (const auto& [type, gemms] : work.gemms) {
    const auto rows = bench_gemms(device, gemms, {.compute = type, .gradient = type}, 1e9, 0);
    EXPECT_EQ(rows.size(), gemms.size());
    for (const auto& row : rows) EXPECT_TRUE(row.valid()) << to_string(row);
    const AttentionBench bench = bench_attention(device, work.attention, type,
                                                 ops::AttentionImplementation::automatic, 1e9, 0);
    EXPECT_EQ(bench.rows.size(), 2 * work.attention.size());
    for (const auto& row : bench.rows) EXPECT_TRUE(row.valid()) << to_string(row);
  }
}

TEST_P(OfAFamily, ProductsAreMostOfItsFlops) {
  const DeckWork work = work_of(read_deck(test::families(), GetParam(), {}));
  ParameterSet parameters;
  const auto model = work.model.family().make(work.model, parameters, {});
  const double all = model->flops(work.shape), products = flops_of(work);
  EXPECT_GT(products, 0.4 * all);
  EXPECT_LT(products, 1.5 * all);  // padding counts too
}

INSTANTIATE_TEST_SUITE_P(Families, OfAFamily,
                         testing::Values("inputs/verify_gpt.json", "inputs/verify_asr.json",
                                         "inputs/verify_salm.json", "inputs/verify_duplex.json",
                                         "inputs/verify_codec.json"));

}  // namespace
}  // namespace choir
