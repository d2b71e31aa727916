// The logits of the head in the memory plan, and automatic chunks that shrink until a plan fits.
#include "src/train/step/memory_fit.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "choir/models/family.hpp"
#include "choir/run/training_data.hpp"
#include "src/core/quantities.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/fastconformer/fastconformer_config.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

constexpr std::int64_t kVocabulary = 128256, kTokens = 4096;

/// One layer with a large vocabulary, and micro-batches of 2 x 4096 tokens in fp32.
EngineOptions large_head(bool reproducible = false) {
  GptConfig c = test::tiny_gpt();
  c.n_layer = 1, c.tied = false, c.vocab_size = kVocabulary, c.block_size = kTokens;
  return test::engine_options(c, "fp32", 1, reproducible);
}

std::int64_t rows_of(const EngineOptions& options) {
  return options.model.family().head_chunk(options.model, options.precision.compute).rows;
}

TEST(MemoryFit, LogitsInMemory) {
  EngineOptions options = large_head();
  const HeadMemory one = head_memory(options, Layout());
  EXPECT_EQ(one.rows, 1024);
  EXPECT_EQ(one.all_rows, 2 * kTokens);
  EXPECT_EQ(one.bytes, 1024.0 * kVocabulary * 4);
  EXPECT_EQ(one.to_string(), "head: 1024 of 8192 rows at a time, 501.0 MiB of logits");
  const HeadMemory four = head_memory(options, Layout(4, 1, 1, 1));
  EXPECT_EQ(four.bytes, one.bytes / 4) << "tensor ranks divide the columns";
  EXPECT_EQ(head_memory(options, Layout(1, 4, 1, 1)).all_rows, 2 * kTokens / 4);
  options.model.as<GptConfig>().head_chunk = 0;
  EXPECT_EQ(head_memory(options, Layout()).to_string(),
            "head: all 8192 rows at once, 3.9 GiB of logits");
  options.model = FastConformerConfig{};
  EXPECT_EQ(head_memory(options, Layout()).to_string(), "") << "CTC has no chunks";
}

TEST(MemoryFit, AutomaticChunksAreHalvedDownTo128Rows) {
  EngineOptions options = large_head();
  for (const std::int64_t rows : {512, 256, 128}) {
    EXPECT_TRUE(halve_head_chunk(options, 1, Layout()));
    EXPECT_EQ(rows_of(options), rows);
  }
  EXPECT_FALSE(halve_head_chunk(options, 1, Layout()));
  EXPECT_EQ(rows_of(options), 128);
}

TEST(MemoryFit, OtherChunksStayAsTheyAre) {
  EngineOptions reproducible = large_head(true);
  EXPECT_FALSE(halve_head_chunk(reproducible, 1, Layout()));
  EXPECT_EQ(rows_of(reproducible), 1024) << "depends on the model alone";
  EngineOptions given = large_head();
  given.model.as<GptConfig>().head_chunk = 1024;
  EXPECT_FALSE(halve_head_chunk(given, 1, Layout()));
  EngineOptions hopeless = large_head();
  EXPECT_FALSE(halve_head_chunk(hopeless, 2.0 * (1 << 30), Layout())) << "even without logits";
  EXPECT_EQ(rows_of(hopeless), 1024);
  EngineOptions small = test::engine_options(test::tiny_gpt(), "fp32", 1);
  EXPECT_FALSE(halve_head_chunk(small, 1, Layout())) << "computed whole";
}

TEST(MemoryFit, HalfAChunkSavesHalfOfItsLogits) {
  EngineOptions options = large_head();
  const auto arena = [&] {
    return static_cast<double>(plan_step(options, Layout(), 0, 1, false).arena_bytes);
  };
  const double before = arena();
  ASSERT_TRUE(halve_head_chunk(options, 1, Layout()));
  EXPECT_NEAR(before - arena(), 512.0 * kVocabulary * 4, 0.01 * before);
}

// Every layer keeps its input alone. The peak lies in the backward of one layer, which has what it
// computes again, so the saving of one of the layers may be missing.
TEST(MemoryFit, AttentionInTilesSavesWhatThePlanSays) {
  GptConfig c = test::tiny_gpt();
  c.n_layer = 8, c.block_size = 256, c.n_kv_head = 2;
  const auto arena = [&](std::int64_t tile) {
    c.attention_chunk = tile;
    return static_cast<double>(
        plan_step(test::engine_options(c, "fp32", 1), Layout(), 0, 1, false).arena_bytes);
  };
  const double saved = arena(0) - arena(64);
  const EngineOptions options = test::engine_options(c, "fp32", 1);
  const double told = bytes_of_tiles(options, Layout());
  // Queries, outputs and half as many keys and values of 32 elements, and 4 statistics.
  EXPECT_EQ(told, 8.0 * 2 * 256 * (32 + 32 + 16 + 16 + 4) * 4);
  EXPECT_GE(saved, told * 7 / 8);
  EXPECT_LE(saved, told * 9 / 8);
  EXPECT_EQ(bytes_of_tiles(options, Layout(2, 1, 1, 2)), told / 4);
  EXPECT_NE(tiles_text(options, Layout()).find("attention: 64 positions at a time, 1.6 MiB"),
            std::string::npos)
      << tiles_text(options, Layout());
  c.attention_chunk = 0;
  EXPECT_EQ(tiles_text(test::engine_options(c, "fp32", 1), Layout()), "");
}

TEST(MemoryFit, TrainingDataThatDoNotFitAreRefusedWithNumbers) {
  const CpuDevice cpu;
  StepPlan plan;
  plan.memory.add("activations", static_cast<std::size_t>(0.5 * node_memory()));
  plan.memory.add(TrainingData::kResident, static_cast<std::size_t>(0.4 * node_memory()));
  EXPECT_NO_THROW(require_memory(plan, 1, cpu));
  plan.memory.add(TrainingData::kResident, static_cast<std::size_t>(0.2 * node_memory()));
  try {
    require_memory(plan, 1, cpu);
    FAIL();
  } catch (const DeckError& error) {
    const std::string text = error.what();
    const std::string data =
        format_bytes(static_cast<double>(plan.memory.bytes_of(TrainingData::kResident)));
    EXPECT_NE(text.find("data.preload = \"device\": 1 rank(s) need " + data), std::string::npos)
        << text;
    EXPECT_NE(error.hint().find("set data.preload to \"host\""), std::string::npos);
  }
  plan.memory.add("activations", static_cast<std::size_t>(0.6 * node_memory()));
  try {
    require_memory(plan, 1, cpu);
    FAIL();
  } catch (const DeckError& error) {
    EXPECT_NE(std::string(error.what()).find("out of memory: 1 rank(s)"), std::string::npos);
  }
}

TEST(MemoryFit, APlanHasTheMemoryOfCblas) {
  GptConfig c = test::tiny_gpt();
  c.n_layer = 1, c.tied = false, c.vocab_size = 5056;
  EngineOptions options = test::engine_options(c, "fp64", 1);
  CpuDevice device;
  const auto mesh = Mesh::planned(Layout(), 0, 1);
  const StepPlan plan = plan_in_memory(options, *mesh, false, device);
  // The gradient of the head has a row per entry, and one column per token of the micro-batch.
  const BatchShape shape = shapes_of(options).front();
  const auto column =
      static_cast<std::size_t>(std::min<std::int64_t>(2048, 8 * shape.samples * shape.tokens));
  EXPECT_EQ(plan.memory.bytes_of("matrix products (packing)"), 5056 * column);
}

}  // namespace
}  // namespace choir
