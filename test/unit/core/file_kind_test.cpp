#include "src/core/file_kind.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace choir {
namespace {

using namespace std::string_literals;

std::string words(std::uint32_t first, std::uint32_t second) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &first, 4);
  std::memcpy(bytes.data() + 4, &second, 4);
  return bytes;
}

TEST(FileKind, KnowsFormatsByTheirFirstBytes) {
  EXPECT_EQ(file_kind("GGUF\x03\0\0\0"s), FileKind::gguf);
  EXPECT_EQ(file_kind("PK\x03\x04...."), FileKind::zip);
  EXPECT_EQ(file_kind("\x1f\x8b\x08"), FileKind::gzip);
  EXPECT_EQ(file_kind("version https://git-lfs.github.com/spec/v1\noid sha256:0"),
            FileKind::git_lfs);
  EXPECT_EQ(file_kind("\n<!DOCTYPE html><html>"), FileKind::html);
  EXPECT_EQ(file_kind("\x89HDF\r\n\x1a\n...."), FileKind::hdf5);
  EXPECT_EQ(file_kind("\x93NUMPY\x01\0"s), FileKind::npy);
  EXPECT_EQ(file_kind("MMIDIDX\0\0\x01"s), FileKind::megatron_index);
  EXPECT_EQ(file_kind("\xc8\0\0\0\0\0\0\0{\"a\""s), FileKind::safetensors);
  EXPECT_EQ(file_kind("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."),
            FileKind::torch_legacy);
  std::string tar(512, '\0');
  EXPECT_EQ(file_kind(tar), FileKind::unknown);
  tar.replace(257, 5, "ustar");
  EXPECT_EQ(file_kind(tar), FileKind::tar);
}

// The first bytes of llm.c's files of tokens are 88d83401 01000000 and a1d93401 07000000.
TEST(FileKind, KnowsFilesOfLlmc) {
  EXPECT_EQ(words(20240520, 1), "\x88\xd8\x34\x01\x01\0\0\0"s);
  EXPECT_EQ(file_kind(words(20240520, 1)), FileKind::llmc_tokens_u16);
  EXPECT_EQ(file_kind(words(20240801, 7)), FileKind::llmc_tokens_u32);
  EXPECT_EQ(file_kind(words(20240326, 3)), FileKind::llmc_model);
  EXPECT_EQ(file_kind(words(20240326, 5)), FileKind::llmc_model);
  EXPECT_EQ(file_kind(words(20240803, 3)), FileKind::llmc_llama_model);
  EXPECT_EQ(file_kind(words(20240522, 1)), FileKind::llmc_evaluation);
  EXPECT_EQ(file_kind(words(20240527, 1)), FileKind::llmc_state);
  EXPECT_EQ(file_kind(words(20240328, 2)), FileKind::llmc_tokenizer);
  EXPECT_EQ(file_kind(words(20240327, 2)), FileKind::llmc_debug_state);
  EXPECT_NE(std::string(describe(FileKind::llmc_tokens_u32)).find("Llama 3"), std::string::npos);
}

TEST(FileKind, PlainTokensAreUnknown) {
  EXPECT_EQ(file_kind(""), FileKind::unknown);
  EXPECT_EQ(file_kind(words(464 | 3139 << 16, 286 | 4881 << 16)), FileKind::unknown);
  EXPECT_EQ(file_kind(words(20240520, 464 | 3139 << 16)), FileKind::unknown);
}

}  // namespace
}  // namespace choir
