#include "src/store/llmc/llmc_model.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "test/unit/store/weights_fixture.hpp"

namespace choir {
namespace {

using test::bytes_of;
using test::refusal;
using test::values;
using test::WeightsFolder;
using Floats = std::vector<float>;

constexpr LlmcConfig kConfig{
    .block_size = 4, .vocab_size = 5, .layers = 2, .heads = 1, .width = 2, .in_bf16 = false};

// The numbers of each tensor continue those of the one before.
void write(const std::string& path, const LlmcConfig& config) {
  LlmcWriter writer(path, config);
  writer.lay_out();
  float next = 0;
  for (const TensorEntry& entry : writer.tensors()) {
    Floats numbers;
    while (std::ssize(numbers) < entry.shape.count()) numbers.push_back(next++);
    writer.write(entry.name, 0, std::ssize(numbers), numbers.data(), DType::f32);
  }
  writer.sync();
  writer.commit(writer.written());
}

struct Llmc : testing::Test {
  std::string refused(const std::function<void(std::vector<std::int32_t>&)>& change) {
    write(folder.file("m.bin"), kConfig);
    std::string bytes = folder.bytes("m.bin");
    std::vector<std::int32_t> header(256);
    std::memcpy(header.data(), bytes.data(), 1024);
    change(header);
    const std::string path = folder.put("bad.bin", bytes_of(header) + bytes.substr(1024));
    return refusal([&] { LlmcReader reader(path); });
  }
  WeightsFolder folder;
};

TEST_F(Llmc, ComesBackWithoutItsPadding) {
  write(folder.file("m.bin"), kConfig);
  const std::string bytes = folder.bytes("m.bin");
  const std::vector<std::int32_t> start{20240326, 3, 4, 5, 2, 1, 2, 128};
  EXPECT_EQ(bytes.substr(0, 32), bytes_of(start));
  const std::size_t elements = 128 * 2 + 4 * 2 + 2 * (12 * 4 + 13 * 2) + 2 * 2;
  EXPECT_EQ(bytes.size(), 1024 + 4 * elements);
  const LlmcReader reader(folder.file("m.bin"));
  EXPECT_EQ(reader.config().vocab_size, 5);
  EXPECT_EQ(reader.config().block_size, 4);
  EXPECT_EQ(reader.at("wte").shape, Shape({5, 2}));
  EXPECT_EQ(reader.at("qkvw").shape, Shape({2, 6, 2}));
  EXPECT_EQ(values(reader, "wte")[9], 9);
  EXPECT_EQ(values(reader, "wpe")[0], 10);
  EXPECT_EQ(values(reader, "lnfb"), (Floats{168, 169}));
  EXPECT_EQ(bytes.substr(1024 + 40, 8), std::string(8, '\0'));
}

TEST_F(Llmc, WritesHalfAsMuchInBf16) {
  LlmcConfig config = kConfig;
  config.in_bf16 = true;
  write(folder.file("m.bin"), config);
  const LlmcReader reader(folder.file("m.bin"));
  EXPECT_TRUE(reader.config().in_bf16);
  EXPECT_EQ(reader.at("fcw").encoding, Encoding::bf16);
  EXPECT_EQ(values(reader, "lnfb"), (Floats{168, 169}));
}

TEST_F(Llmc, RefusesHeadersThatLie) {
  const auto with = [&](std::size_t i, std::int32_t number) {
    return refused([&](auto& header) { header[i] = number; });
  };
  EXPECT_EQ(with(100, 0), "");
  EXPECT_SAYS(with(0, 20240520), "is a file of tokens of llm.c (GPT-2, 16 bits)");
  EXPECT_SAYS(with(0, 20240803), "is a Llama model of llm.c");
  EXPECT_SAYS(with(1, 4), "version 4 of llm.c's models");
  EXPECT_SAYS(with(1, 5), "but its header describes");
  EXPECT_SAYS(with(4, 0), "number 4 of the header");
  EXPECT_SAYS(with(4, 3), "but its header describes");
  EXPECT_SAYS(with(6, -2), "number 6 of the header");
  EXPECT_SAYS(with(5, 4), "has 4 heads, width 2");
  EXPECT_SAYS(with(7, 4), "vocabulary 5 padded to 4");
  EXPECT_SAYS(with(6, 0x7fffffff), "an impossible number of elements");
  EXPECT_SAYS(refusal([&] { LlmcReader reader(folder.put("x", "\x16\xd8\x34\x01")); }),
              "of an unknown kind");
}

}  // namespace
}  // namespace choir
