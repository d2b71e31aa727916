// Tests of the .nemo files that are written: read again, and their zip archives looked at byte by
// byte.
#include "src/store/torch/nemo_writer.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "src/store/torch/nemo_archive.hpp"
#include "test/unit/store/weights_fixture.hpp"

namespace choir {
namespace {

using test::values;
using test::WeightsFolder;

/// CRC-32 bit by bit, as the polynomial is defined.
std::uint32_t by_bits(std::string_view bytes) {
  std::uint32_t c = 0xffffffffu;
  for (const char byte : bytes) {
    c ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) c = (c & 1u) ? (c >> 1) ^ 0xEDB88320u : c >> 1;
  }
  return ~c;
}

template <class Word>
Word word_at(std::string_view bytes, std::size_t at) {
  Word word;
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

struct ZipEntry {
  std::string name;
  std::uint32_t crc = 0, local_crc = 0;
  std::size_t data = 0;  ///< from the start of the file
  std::string_view content;
};

/// The members by the entries of the directory, whose offsets and sizes have 64 bits.
std::vector<ZipEntry> entries_of(std::string_view file) {
  const std::size_t zip = file.find("PK\3\4");
  std::vector<ZipEntry> all;
  for (std::size_t at = file.find("PK\1\2"); at != std::string_view::npos;
       at = file.find("PK\1\2", at + 1)) {
    const auto name = word_at<std::uint16_t>(file, at + 28);
    const std::size_t extra = at + 46 + name;
    const auto size = word_at<std::uint64_t>(file, extra + 4);
    const std::size_t local = zip + word_at<std::uint64_t>(file, extra + 20);
    ZipEntry entry{.name = std::string(file.substr(at + 46, name)),
                   .crc = word_at<std::uint32_t>(file, at + 16),
                   .local_crc = word_at<std::uint32_t>(file, local + 14),
                   .data = local + 30 + name + word_at<std::uint16_t>(file, local + 28)};
    entry.content = file.substr(entry.data, size);
    all.push_back(entry);
  }
  return all;
}

std::vector<float> numbers(int count) {
  std::vector<float> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0.5f);
  return all;
}

// Two ranks write parts of a matrix, in the order in which they happen to come.
TEST(NemoWriter, RanksWriteOneFileWithItsChecksums) {
  const WeightsFolder folder;
  const std::string path = folder.file("model.nemo");
  const std::vector<NemoMember> members{{"model_config.yaml", "target: x\n"},
                                        {"0f_tokenizer.model", std::string(513, 'p')}};
  const std::vector<TensorEntry> tensors{{"window", Encoding::f32, {3}},
                                         {"conv.weight", Encoding::bf16, {4, 1, 2}},
                                         {"batches", Encoding::i64, {}}};
  NemoWriter first(path, members, tensors), second(path, members, tensors);
  const std::vector<float> all = numbers(8);
  const std::int64_t batches = 7;
  first.lay_out();
  second.write("conv.weight", 6, 2, all.data() + 6, DType::f32);
  first.write("window", 0, 3, all.data(), DType::f32);
  first.write("conv.weight", 2, 4, all.data() + 2, DType::f32);
  second.write("batches", 0, 1, &batches, DType::i64);
  second.write("conv.weight", 0, 2, all.data(), DType::f32);
  first.sync(), second.sync();
  for (std::size_t i = 0; i < tensors.size(); ++i) first.checksums()[i] ^= second.checksums()[i];
  first.commit(first.written() + second.written());

  const NemoArchive archive(path);
  EXPECT_EQ(archive.members(), (std::vector<std::string>{"model_config.yaml", "0f_tokenizer.model",
                                                         "model_weights.ckpt"}));
  EXPECT_EQ(archive.read_member("0f_tokenizer.model"), members[1].bytes);
  const auto weights = archive.open_weights();
  EXPECT_EQ(weights->at("conv.weight").shape, (Shape{4, 1, 2}));
  EXPECT_EQ(weights->at("batches").shape, Shape());
  EXPECT_EQ(values(*weights, "conv.weight"), all);
  EXPECT_EQ(values(*weights, "window"), numbers(3));
  std::int64_t read = 0;
  weights->read("batches", 0, 1, &read, DType::i64);
  EXPECT_EQ(read, 7);

  const std::string file = folder.bytes("model.nemo");
  const std::vector<ZipEntry> entries = entries_of(file);
  ASSERT_EQ(entries.size(), 6u);
  for (const ZipEntry& entry : entries) {
    EXPECT_EQ(entry.data % 64, 0u) << entry.name;
    EXPECT_EQ(entry.crc, by_bits(entry.content)) << entry.name;
    EXPECT_EQ(entry.local_crc, entry.crc) << entry.name;
  }
  EXPECT_EQ(entries[2].content, "3\n");
  EXPECT_EQ(entries[4].name, "model_weights/data/1");
}

TEST(NemoWriter, AFileOfWhichAPartIsMissingIsRemoved) {
  const WeightsFolder folder;
  const std::vector<float> all = numbers(4);
  {
    NemoWriter writer(folder.file("model.nemo"), {{"model_config.yaml", "x: 1\n"}},
                      {{"w", Encoding::f32, {5}}});
    writer.lay_out();
    writer.write("w", 0, 4, all.data(), DType::f32);
    EXPECT_SAYS(test::refusal([&] { writer.commit(writer.written()); }), "4 of 5 elements");
  }
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace choir
