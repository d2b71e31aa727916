// Tests of event files byte by byte. The bytes come from the writer and the protocol buffers of the
// Python package tensorboard.
#include "src/train/loop/metrics_log.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace choir {
namespace {

using namespace std::string_literals;

std::string unescaped(const char* hex) {
  std::string bytes;
  for (const char* at = hex; *at != '\0'; at += 2)
    bytes += static_cast<char>(std::stoi(std::string(at, 2), nullptr, 16));
  return bytes;
}

TEST(Tensorboard, FirstRecordIsThatOfTheReferenceWriter) {
  EXPECT_EQ(tensorboard::record(tensorboard::version_event(1763780000.5)),
            unescaped("1800000000000000a37f4b22090000206849"
                      "48da411a0d627261696e2e4576656e743a3209692dd8"));
}

TEST(Tensorboard, RestartIsThatOfTheReferenceWriter) {
  EXPECT_EQ(tensorboard::record(tensorboard::start_event(1763780001.25, 301)),
            unescaped("100000000000000095fbfe1809000050684948da4110ad023a0208014f7718df"));
}

TEST(Tensorboard, ScalarsAreThoseOfTheReferenceWriter) {
  const std::vector<std::pair<std::string, double>> scalars{{"train/loss", 2.5},
                                                            {"val/wer/voices", 0.1}};
  EXPECT_EQ(tensorboard::record(tensorboard::scalars_event(1763780002.0, 300, scalars)),
            unescaped("3800000000000000a3797d5709000080684948da4110ac022a2a0a110a0a747261696e2f6c6f"
                      "7373150000"
                      "20400a150a0e76616c2f7765722f766f6963657315cdcccc3d9edc59bd"));
}

TEST(Tensorboard, EveryStartHasAFileBehindTheOnesBefore) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("choir_tensorboard_" + std::to_string(::getpid()));
  TensorboardFile first(folder.string(), 1), second(folder.string(), 11);
  EXPECT_LT(first.path(), second.path());
  StepMetrics metrics{.step = 11, .dt = 0.5, .tokens = 100};
  metrics.val_loss = 1.5;
  metrics.validations = {{.name = "voices", .loss = 1.25, .metrics = {{"wer", 0.5}}}};
  EXPECT_TRUE(second.write(metrics));
  std::ifstream file(second.path(), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  for (const char* tag : {"train/loss", "speed/tokens_per_second", "val/loss", "val/loss/voices",
                          "val/wer/voices", "phases/comm"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
  // The second file records the step from which it counts: SessionLog START.
  EXPECT_NE(bytes.find("\x10\x0b\x3a\x02\x08\x01"s), std::string::npos);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace choir
