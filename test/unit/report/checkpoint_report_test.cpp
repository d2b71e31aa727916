#include "src/report/checkpoint_report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace choir {
namespace {

InspectedCheckpoint sample() {
  InspectedCheckpoint c;
  c.checkpoint.path = "runs/x/checkpoints/step_00000007";
  Manifest& m = c.checkpoint.manifest;
  m.step = 7;
  m.saved_at = "2026-01-02 03:04:05";
  m.layout = "dp=2";
  m.deck_hash = "00ff";
  m.metric = 1.5;
  m.state_bytes = 4096;
  m.tensors = {
      {.name = "parameters/w", .dtype = DType::f32, .shape = {3, 4}, .offset = 0, .crc32c = 0xab},
      {.name = "optimizer/m/w",
       .dtype = DType::f32,
       .shape = {3, 4},
       .offset = 48,
       .crc32c = 0xcd}};
  c.meta = {.deck = R"({"model":{"n_layer":2,"norm":"rmsnorm","vocab_size":0},
                           "derived":{"model.vocab_size":65,"run.name":"x"}})",
            .vocabulary = "",
            .vocab_size = 65,
            .provenance = R"({"revision":"abc"})"};
  c.progress.consumed_samples = 84;
  return c;
}

TEST(Inspect, CountsParametersWithoutMoments) {
  const std::string text = to_text(sample());
  EXPECT_NE(text.find("model          12 parameters"), std::string::npos) << text;
  EXPECT_NE(text.find("n_layer=2"), std::string::npos) << text;
  EXPECT_NE(text.find("vocab_size=65"), std::string::npos) << text;  // not the 0 of the deck
  EXPECT_NE(text.find("norm=rmsnorm"), std::string::npos) << text;
  EXPECT_NE(text.find("sequences      84"), std::string::npos) << text;
  EXPECT_NE(text.find("best val loss  not measured"), std::string::npos) << text;
  EXPECT_NE(text.find("checksums not compared"), std::string::npos) << text;
}

TEST(Inspect, MarksTheDamagedTensorOnly) {
  InspectedCheckpoint c = sample();
  c.verification = Verification{{true, false}, "damaged: tensor optimizer/m/w"};
  EXPECT_TRUE(c.damaged());
  const std::string text = to_text(c);
  EXPECT_NE(text.find("000000ab  ok\n"), std::string::npos) << text;
  EXPECT_NE(text.find("000000cd  DAMAGED\n"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("DAMAGED: damaged: tensor optimizer/m/w")) << text;
  const auto parsed = nlohmann::json::parse(to_json(c));
  EXPECT_EQ(parsed.at("tensors").at(0).at("ok"), true);
  EXPECT_EQ(parsed.at("tensors").at(1).at("ok"), false);
  EXPECT_EQ(parsed.at("tensors").at(1).at("shape"), std::vector<int>({3, 4}));
  EXPECT_TRUE(parsed.at("progress").at("best_val_loss").is_null());  // infinity is not JSON
}

TEST(Inspect, AllBytesGoodIsSaid) {
  InspectedCheckpoint c = sample();
  c.verification = Verification{{true, true}, ""};
  EXPECT_FALSE(c.damaged());
  EXPECT_TRUE(to_text(c).ends_with("ok: all checksums match"));
}

TEST(Inspect, ListsRunsWithTheReasonOfWhatIsNotValid) {
  const std::vector<CheckpointSummary> list{
      {.path = "a",
       .step = 20,
       .saved_at = "2026-01-02 03:04:05",
       .val_loss = 1.25,
       .bytes = 1 << 20,
       .latest = true},
      {.path = "b", .step = 10, .problem = "manifest.json: it is not JSON"}};
  const std::string text = to_text("runs/x/checkpoints", list, false);
  EXPECT_NE(text.find("1.250000      1.0 MiB  valid (latest)"), std::string::npos) << text;
  EXPECT_NE(text.find("NOT VALID: manifest.json: it is not JSON"), std::string::npos) << text;
  const auto parsed = nlohmann::json::parse(to_json("runs/x/checkpoints", list, true));
  EXPECT_EQ(parsed.at("checkpoints").at(0).at("valid"), true);
  EXPECT_TRUE(parsed.at("checkpoints").at(1).at("val_loss").is_null());
}

}  // namespace
}  // namespace choir
