#include "src/train/step/engine.hpp"

#include <gtest/gtest.h>

#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

std::string complaint(const std::vector<RateScale>& scales, Freezing freezing = {}) {
  EngineOptions options = test::engine_options(test::tiny_gpt(), "fp32", 1);
  options.rate_scales = scales;
  options.freezing = std::move(freezing);
  test::SingleRank single;
  try {
    test::EngineRun run(options, *single.mesh);
    return "";
  } catch (const DeckError& error) {
    return error.what();
  }
}

TEST(RateScales, WhatCannotBeMeantIsRefused) {
  EXPECT_EQ(complaint({{"blocks.*", 0.1}, {"embedding.*", 2}}), "");
  EXPECT_EQ(complaint({{"block.*", 0.1}}), "optimizer.scale: 'block.*' matches no parameter");
  EXPECT_NE(complaint({{"blocks.*", 0.1}, {"*.qkv.bias", 2}})
                .find("'blocks.*' and '*.qkv.bias' both match blocks.0.attention.qkv.bias"),
            std::string::npos);
  EXPECT_NE(complaint({{"blocks.0.*", 0.1}}, {{"blocks.0.*"}, {}}).find("only frozen parameters"),
            std::string::npos);
  EXPECT_EQ(complaint({{"blocks.*", 0.1}}, {{"blocks.0.*"}, {}}), "") << "a part is trained";
}

TEST(RateScales, TilesAndCopiesGoWithTheTensor) {
  for (const bool tied : {true, false}) {
    GptConfig model = test::tiny_gpt();
    model.tied = tied, model.tile = 2;
    EngineOptions options = test::engine_options(model, "fp32", 1, tied);  // a copy of the head
    test::SingleRank single;
    test::EngineRun run(options, *single.mesh);
    const ParameterSet& parameters = run.engine().instance().parameters();
    const auto scale = rate_scales(parameters, {{"embedding.*", 0.5}, {"*.1.feed_forward.*", 3}});
    int tiles = 0, halves = 0;
    for (const Parameter& p : parameters.parameters()) {
      const bool of_block = p.name.starts_with("blocks.1.feed_forward.");
      const bool of_table = p.name.starts_with("embedding.") || p.tied_to != nullptr;
      EXPECT_EQ(scale(p), of_block ? 3 : of_table ? 0.5 : 1) << p.name;
      tiles += of_block && p.shard.tile > 0;
      halves += of_table;
    }
    EXPECT_GT(tiles, 0);
    EXPECT_EQ(halves, tied ? 3 : 2);
  }
  EXPECT_FALSE(rate_scales(ParameterSet(), {}));
}

}  // namespace
}  // namespace choir
