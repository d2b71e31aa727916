// Tests of the positions, the number and the initial values of parameters.
#include "choir/nn/parameter_set.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "choir/core/philox.hpp"
#include "choir/nn/parameter.hpp"
#include "src/models/fastconformer/fastconformer.hpp"
#include "src/models/gpt/gpt.hpp"

namespace choir {
namespace {

GptConfig odd_gpt() {
  return {.vocab_size = 13,
          .block_size = 5,
          .n_layer = 3,
          .n_head = 3,
          .n_kv_head = 1,
          .n_embd = 18,
          .ffn_width = 25};
}

TEST(ParameterSet, PlacementForAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    ParameterSet set;
    const Gpt model(odd_gpt(), set);
    set.place(ranks);
    std::int64_t at = 0;
    for (const Bucket& bucket : set.buckets()) {
      EXPECT_EQ(bucket.offset, at) << "buckets follow each other";
      EXPECT_EQ(bucket.size % (ranks * ParameterSet::kSliceAlignment), 0) << ranks;
      std::int64_t end = 0;
      for (const Parameter* p : bucket.parameters) {
        EXPECT_EQ(p->offset % ParameterSet::kAlignment, 0) << p->name;
        EXPECT_GE(p->offset, end) << p->name << " overlaps its neighbour";
        EXPECT_LT(p->offset - end, ParameterSet::kAlignment) << p->name << ": a gap";
        EXPECT_EQ(p->decay, p->offset < bucket.decayed) << p->name;
        end = p->offset + p->count();
        if (p->decay) {
          EXPECT_LE(end, bucket.decayed) << p->name;
        }
      }
      EXPECT_LE(end, bucket.size);
      EXPECT_LT(bucket.size - end, (ranks + 1) * ParameterSet::kSliceAlignment)
          << "wasteful padding";
      at += bucket.size;
    }
    EXPECT_EQ(set.flat_size(), at);
  }
}

// Logits are rows of these tensors: on a GPU no product loads 16 bytes of a row that is not a
// multiple of 8.
TEST(ParameterSet, HeadsArePaddedOnOneRankToo) {
  ParameterSet gpt, speech;
  const Gpt writes({.vocab_size = 50257,
                    .block_size = 8,
                    .n_layer = 1,
                    .n_head = 2,
                    .n_kv_head = 2,
                    .n_embd = 8,
                    .ffn_width = 16},
                   gpt);
  const FastConformer hears(
      {.n_layer = 1, .n_embd = 8, .n_head = 2, .subsampling_channels = 4, .vocab_size = 1024},
      speech);
  const auto rows = [](const ParameterSet& set, const std::string& name) {
    for (const Parameter& p : set.parameters())
      if (p.name == name) return p.local[0];
    return std::int64_t{0};
  };
  EXPECT_EQ(rows(gpt, "embedding.tokens.weight"), 50304);
  EXPECT_EQ(rows(speech, "head.weight"), 1088) << "1025 with the blank";
  EXPECT_EQ(rows(speech, "head.bias"), 1088);
}

TEST(ParameterSet, BindPointsIntoFlatMemory) {
  ParameterSet set;
  const Gpt model(odd_gpt(), set);
  set.place(3);
  std::vector<float> masters(static_cast<std::size_t>(set.flat_size())), gradients(masters);
  std::vector<bf16> values(masters.size());
  set.bind(precision_of("bf16-mixed"), values.data(), masters.data(), gradients.data());
  std::set<const float*> seen;
  for (const Parameter& p : set.parameters()) {
    const std::int64_t first = set.buckets()[static_cast<std::size_t>(p.bucket)].offset + p.offset;
    EXPECT_EQ(p.value.as<bf16>(), values.data() + first) << p.name;
    EXPECT_EQ(p.master.as<float>(), masters.data() + first) << p.name;
    EXPECT_EQ(p.gradient.as<float>(), gradients.data() + first) << p.name;
    EXPECT_EQ(p.master.shape, p.local);
    EXPECT_TRUE(seen.insert(p.master.as<float>()).second);
  }
  set.bind(precision_of("fp32"), masters.data(), masters.data(), nullptr);
  EXPECT_TRUE(set.parameters().front().gradient.empty());
}

TEST(ParameterSet, RefusesMistakes) {
  ParameterSet set;
  EXPECT_THROW(set.add({.name = "a", .shape = {1}}), Error) << "no bucket";
  set.begin_bucket("b");
  set.add({.name = "a", .shape = {1}});
  EXPECT_THROW(set.add({.name = "a", .shape = {2}}), Error) << "twice the same name";
}

TEST(ParameterSet, TilesAreBucketsOfTheSameTensors) {
  GptConfig config = odd_gpt();
  config.ffn_width = 24;
  config.activation = ops::Activation::swiglu;
  ParameterSet plain, tiled;
  const Gpt one(config, plain);
  config.tile = 3;
  const Gpt three(config, tiled);
  plain.place(2), tiled.place(2);
  EXPECT_EQ(tiled.count(), plain.count());
  EXPECT_EQ(tiled.count_decayed(), plain.count_decayed());
  EXPECT_EQ(tiled.buckets().size(), plain.buckets().size() + 3u * 3);
  ASSERT_EQ(tiled.all().size(), plain.all().size());
  std::vector<float> values;
  for (std::size_t i = 0; i < plain.all().size(); ++i) {
    const Parameter& whole = *plain.all()[i];
    EXPECT_EQ(tiled.all()[i]->name, whole.name) << "in the same order";
    EXPECT_EQ(tiled.all()[i]->shape, whole.shape);
    const auto count = static_cast<std::size_t>(whole.count());
    std::vector<float> expected(count), gathered(count, NAN);
    initialise(whole, 11, {expected.data(), DType::f32, whole.local});
    int tiles = 0;
    for (const Parameter* p = tiled.all()[i]; p != nullptr; p = p->next_tile, ++tiles) {
      EXPECT_EQ(p->name, whole.name);
      EXPECT_EQ(p->decay, whole.decay);
      values.assign(static_cast<std::size_t>(p->local_count()), NAN);
      initialise(*p, 11, {values.data(), DType::f32, p->local});
      for (const ShardRun& run : shard_runs(*p))
        std::copy_n(values.begin() + run.local, run.count, gathered.begin() + run.logical);
      const Bucket& bucket = tiled.buckets()[static_cast<std::size_t>(p->bucket)];
      EXPECT_EQ(bucket.tile, p->shard.tiles > 1 ? p->shard.tile + 1 : 0);
    }
    const bool cut = whole.name.find("feed_forward.") != std::string::npos &&
                     whole.name.find("feed_forward.output.bias") == std::string::npos;
    EXPECT_EQ(tiles, cut ? 3 : 1) << whole.name;
    EXPECT_EQ(gathered, expected) << whole.name << ": the same elements, wherever they are";
  }
  EXPECT_NE(three.describe().find("in 3 tiles"), std::string::npos);
}

TEST(ParameterSet, TilesFollowOnEachOther) {
  ParameterSet set;
  set.begin_bucket("b");
  set.begin_tile();
  const auto tile = [](int index, const Shape& shape) {
    return Parameter{.name = "w",
                     .shape = shape,
                     .init = {},
                     .shard = {.split_dim = 0, .tile = index, .tiles = 3}};
  };
  set.add(tile(0, {6}));
  EXPECT_THROW(set.add(tile(0, {6})), Error) << "twice";
  EXPECT_THROW(set.add(tile(2, {6})), Error) << "one left out";
  EXPECT_THROW(set.add(tile(1, {9})), Error) << "of another tensor";
  set.end_tiles();
  EXPECT_EQ(set.add({.name = "a", .shape = {1}}).bucket, 0) << "back in the bucket of the layer";
}

// The published run: 12 x 768, vocabulary 65, block 1024, no biases, tied.
TEST(ParameterSet, CountsOfTheAlcfTalk) {
  ParameterSet set;
  const Gpt model({.vocab_size = 65, .block_size = 1024, .bias = false}, set);
  EXPECT_EQ(model.parameters_without_positions(), 85'003'776);
  EXPECT_EQ(set.count_decayed(), 85'771'008);
  EXPECT_EQ(set.count() - set.count_decayed(), 19'200);
  std::int64_t decayed = 0, others = 0;
  for (const Parameter& p : set.parameters()) ++(p.decay ? decayed : others);
  EXPECT_EQ(decayed, 50);
  EXPECT_EQ(others, 25);
  // 6 N + 12 L H Q T with H Q = 768
  EXPECT_EQ(model.flops_per_token(), 6.0 * 85'003'776 + 12.0 * 12 * 768 * 1024);
}

// GPT-2 small as OpenAI published it: 124,439,808 with biases, vocabulary and positions.
TEST(ParameterSet, CountsOfGpt2) {
  ParameterSet set;
  const Gpt model({.vocab_size = 50257}, set);
  EXPECT_EQ(set.count(), 124'439'808);
}

// Llama 2 7B: 6,738,415,616.
TEST(ParameterSet, CountsOfLlama2) {
  ParameterSet set;
  const Gpt model({.vocab_size = 32000,
                   .block_size = 4096,
                   .n_layer = 32,
                   .n_head = 32,
                   .n_kv_head = 32,
                   .n_embd = 4096,
                   .ffn_width = 11008,
                   .bias = false,
                   .tied = false,
                   .norm = ops::Norm::rmsnorm,
                   .activation = ops::Activation::swiglu,
                   .position = Position::rope},
                  set);
  EXPECT_EQ(set.count(), 6'738'415'616);
}

template <class T>
std::vector<T> initial(const std::string& name, const Shape& shape, std::uint64_t seed) {
  Parameter p{.name = name, .shape = shape, .init = Init::normal(0.02)};
  std::vector<T> memory(static_cast<std::size_t>(shape.count()));
  p.master = {memory.data(), DTypeOf<T>::value, shape};
  initialise(p, seed, p.master);
  return memory;
}

TEST(Initialise, ElementIsAFunctionOfSeedNameAndIndex) {
  const auto all = initial<double>("blocks.0.w", {30, 40}, 9);
  const auto fewer = initial<double>("blocks.0.w", {7, 5}, 9);  // other shape, same elements
  for (std::size_t i = 0; i < fewer.size(); ++i) EXPECT_EQ(all[i], fewer[i]);
  const PhiloxKey key = philox_key(9, "init/blocks.0.w");
  for (const std::size_t i : {std::size_t{0}, std::size_t{577}, all.size() - 1})
    EXPECT_EQ(all[i], 0.02 * normal_at(key, i));
  EXPECT_NE(all, initial<double>("blocks.1.w", {30, 40}, 9));
  EXPECT_NE(all, initial<double>("blocks.0.w", {30, 40}, 10));
  const auto rounded = initial<float>("blocks.0.w", {30, 40}, 9);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(rounded[i], static_cast<float>(all[i]));
}

TEST(Initialise, Bf16IsTheNearest) {
  const auto all = initial<double>("blocks.0.w", {30, 40}, 9);
  const auto rounded = initial<bf16>("blocks.0.w", {30, 40}, 9);
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_LE(std::fabs(static_cast<double>(static_cast<float>(rounded[i])) - all[i]),
              0x1p-8 * std::fabs(all[i]))
        << i;
}

// The name of an element must not depend on the number of ranks or on the rank, and may not be used
// twice.
TEST(ParameterSet, PositionsAreTheSameForAnyNumberOfRanks) {
  std::vector<std::int64_t> positions;
  GptConfig config = odd_gpt();
  config.n_head = config.n_kv_head = 2, config.ffn_width = 26;
  for (const int data_ranks : {1, 2, 3, 7})
    for (const int tensor_ranks : {1, 2}) {
      ParameterSet set({.rank = tensor_ranks - 1, .ranks = tensor_ranks});
      const Gpt model(config, set);
      set.place(data_ranks);
      std::vector<std::int64_t> found;
      std::int64_t end = 0, padding = 0;
      const auto placed = [](std::int64_t n) {
        constexpr std::int64_t kUnit = ParameterSet::kAlignment;
        return (n + kUnit - 1) / kUnit * kUnit;
      };
      for (const Bucket& bucket : set.buckets())
        for (const Parameter* p : bucket.parameters) {
          EXPECT_GE(p->position, end);
          end = p->position + p->count();
          found.push_back(p->position);
          // Parameters of one rank have the positions that they have in memory, except for the rows
          // of padding.
          if (data_ranks == 1 && tensor_ranks == 1) {
            EXPECT_EQ(p->position + padding, bucket.offset + p->offset);
            padding += placed(p->local_count()) - placed(p->count());
          }
        }
      if (positions.empty()) positions = found;
      EXPECT_EQ(found, positions) << data_ranks << " " << tensor_ranks;
    }
}

TEST(Initialise, IsNormal) {
  const auto x = initial<double>("w", {1000, 1000}, 3);
  double mean = 0, square = 0, fourth = 0;
  for (const double v : x)
    mean += v / 0.02, square += v * v / 4e-4, fourth += v * v * v * v / 1.6e-7;
  const auto n = static_cast<double>(x.size());
  // Standard errors of the first, second and fourth moment of n normals: 1, sqrt(2), sqrt(96) over
  // sqrt(n); five of them.
  EXPECT_NEAR(mean / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(square / n, 1, 5 * std::sqrt(2.0) / std::sqrt(n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96.0) / std::sqrt(n));
}

TEST(Initialise, OnesAndZeros) {
  std::vector<float> memory(5, 7.0f);
  Parameter p{.name = "n", .shape = {5}, .init = Init::ones()};
  p.master = {memory.data(), DType::f32, {5}};
  initialise(p, 1, p.master);
  EXPECT_EQ(memory, std::vector<float>(5, 1.0f));
  p.init = Init::zeros();
  initialise(p, 1, p.master);
  EXPECT_EQ(memory, std::vector<float>(5, 0.0f));
}

// Outputs of residual branches start smaller by sqrt(2 L), as in nanoGPT.
TEST(Initialise, ResidualOutputsAreScaled) {
  ParameterSet set;
  const Gpt model(odd_gpt(), set);
  for (const Parameter& p : set.parameters()) {
    if (p.shape.rank() != 2) continue;
    EXPECT_DOUBLE_EQ(p.init.std, p.name.ends_with("output.weight") ? 0.02 / std::sqrt(6.0) : 0.02)
        << p.name;
  }
}

}  // namespace
}  // namespace choir
