#include "src/data/text/token_stream.hpp"

#include <numeric>

#include <cstring>

#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::packed;
using test::ScratchFolder;
using test::write_bytes;
using test::write_native;

std::vector<std::int32_t> numbers(std::int32_t n) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(n));
  for (std::int32_t i = 0; i < n; ++i) all[static_cast<std::size_t>(i)] = (i * 7 + 3) % 1000;
  return all;
}

std::vector<std::int32_t> read(const TokenStream& stream, std::int64_t first, std::int64_t count) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  stream.read(first, count, tokens.data());
  return tokens;
}

// A vocabulary above 65,536 needs 32 bits; read as 16 bits, every second token would be 0 or 1.
TEST(TokenStream, RawTokensOf32BitsAreRecognised) {
  const ScratchFolder folder;
  std::vector<std::int32_t> ids(1000);
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(i * 7919 % 128256);
  const auto bytes_of = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()),
                       values.size() * sizeof values[0]);
  };
  write_bytes(folder / "wide.bin", bytes_of(ids));
  const auto wide = TokenStream::open({folder / "wide.bin"}, TokenFormat::automatic, Split::train);
  ASSERT_EQ(wide.count(), 1000);
  EXPECT_EQ(read(wide, 0, 1000), ids);
  std::vector<std::uint16_t> few(1000), many(1000);
  for (std::size_t i = 0; i < few.size(); ++i) {
    few[i] = static_cast<std::uint16_t>(i * i % 13);
    many[i] = static_cast<std::uint16_t>(i * 7919 % 50257);
  }
  for (const auto& narrow : {few, many}) {
    write_bytes(folder / "narrow.bin", bytes_of(narrow));
    EXPECT_EQ(
        TokenStream::open({folder / "narrow.bin"}, TokenFormat::automatic, Split::train).count(),
        1000);
  }
}

// Read as 16 bits, such files give ids within many a vocabulary, and training learns nothing.
TEST(TokenStream, OtherContentsOfABinFileAreRefused) {
  const ScratchFolder folder;
  const auto bytes_of = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()),
                       values.size() * sizeof values[0]);
  };
  std::vector<std::int64_t> large(500), small(500);
  std::vector<std::uint16_t> ids(500);
  for (std::size_t i = 0; i < large.size(); ++i) {
    large[i] = static_cast<std::int64_t>(i * 7919 % 128256);
    small[i] = static_cast<std::int64_t>(i * i % 13);
    ids[i] = static_cast<std::uint16_t>(i * 7919 % 50257);
  }
  std::string text;
  for (int i = 0; i < 20; ++i) text += "To be, or not to be: gr\xc3\xbc\xc3\x9f\n";
  const struct {
    std::string bytes, kind, cure;
  } kinds[] = {
      {bytes_of(large), "an array of 64-bit integers", "'int64').astype('uint32').tofile("},
      {bytes_of(small), "an array of 64-bit integers", "'int64').astype('uint32').tofile("},
      {"\x93NUMPY\1" + bytes_of(ids), "an array of NumPy", "astype('uint32')"},
      {text, "text", ".txt"},
      {"\x1f\x8b\x08" + bytes_of(ids), "compressed by gzip", "gunzip"},
      {"PK\x03\x04" + bytes_of(ids), "a zip archive", "tofile"},
      {"GGUF" + bytes_of(ids), "a GGUF file", ""},
  };
  for (const auto& one : kinds) {
    write_bytes(folder / "train.bin", one.bytes);
    try {
      TokenStream::open({folder / "train.bin"}, TokenFormat::automatic, Split::train);
      ADD_FAILURE() << one.kind;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(one.kind), std::string::npos) << error.what();
      EXPECT_NE(error.hint().find(one.cure), std::string::npos) << error.hint();
    }
  }
}

TEST(TokenStream, EverySplitIntoFilesIsTheSameRow) {
  const auto all = numbers(101);
  for (const std::size_t part : {1u, 3u, 50u, 100u, 101u}) {
    const ScratchFolder folder;
    for (std::size_t first = 0, i = 0; first < all.size(); first += part, ++i)
      write_native(folder / fmt::format("train_{:05}.tok", i),
                   std::span(all).subspan(first, std::min(part, all.size() - first)), 1000);
    write_native(folder / "val_00000.tok", std::span(all).first(2), 1000);
    const auto stream = TokenStream::open({folder.path()}, TokenFormat::automatic, Split::train);
    ASSERT_EQ(stream.count(), 101);
    const auto copy = TokenStream::deserialise(stream.serialise());
    for (std::int64_t first = 0; first < 101; first += 10)
      for (std::int64_t count = 0; first + count <= 101; count += 13) {
        const std::vector<std::int32_t> expected(all.begin() + first, all.begin() + first + count);
        ASSERT_EQ(read(stream, first, count), expected);
        ASSERT_EQ(read(copy, first, count), expected);
      }
    const auto val = TokenStream::open({folder.path()}, TokenFormat::automatic, Split::val);
    EXPECT_EQ(val.count(), 2);
  }
}

TEST(TokenStream, ReadsNanoGpt) {
  const ScratchFolder folder;
  const std::vector<std::uint16_t> tokens{5, 65535, 0, 50256};
  write_bytes(folder / "train.bin", packed<std::uint16_t>(tokens));
  write_bytes(folder / "val.bin", packed<std::uint16_t>(std::span(tokens).first(2)));
  const auto stream = TokenStream::open({folder.path()}, TokenFormat::automatic, Split::train);
  EXPECT_EQ(read(stream, 0, 4), (std::vector<std::int32_t>{5, 65535, 0, 50256}));
  EXPECT_EQ(stream.vocab_size(), 0);
  write_bytes(folder / "odd.bin", "abc");
  EXPECT_DATA_ERROR(TokenStream::open({folder / "odd.bin"}, TokenFormat::nanogpt, Split::train),
                    "has 3 bytes, not a multiple of 2");
}

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Two documents of sequences 3, 2 and 1 tokens.
// 256 integers: magic, version, count, zeros.
std::string llmc_header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::string header(1024, '\0');
  const std::int32_t first[] = {magic, version, count};
  std::memcpy(header.data(), first, sizeof first);
  return header;
}

TEST(TokenStream, ReadsLlmC) {
  const ScratchFolder folder;
  const auto ids = [&](const std::string& bytes) {
    write_bytes(folder / "x.bin", bytes);
    const auto stream = TokenStream::open({folder / "x.bin"}, TokenFormat::automatic, Split::train);
    std::vector<std::int32_t> all(static_cast<std::size_t>(stream.count()));
    stream.read(0, stream.count(), all.data());
    return all;
  };
  const std::string narrow("\x01\x00\x50\xC4", 4), wide("\x00\xF5\x01\x00\x07\x00\x00\x00", 8);
  EXPECT_EQ(ids(llmc_header(20240520, 1, 2) + narrow), (std::vector<std::int32_t>{1, 50256}));
  EXPECT_EQ(ids(llmc_header(20240801, 7, 2) + wide), (std::vector<std::int32_t>{128256, 7}));
  EXPECT_DATA_ERROR(ids(llmc_header(20240801, 7, 3) + wide), "has 2 tokens, its header says 3");
  EXPECT_DATA_ERROR(ids(llmc_header(20240801, 8, 2) + wide), "of version 8");
  EXPECT_DATA_ERROR(ids(llmc_header(20240522, 1, 2) + wide), "multiple-choice");
}

std::string megatron_index(char code, std::int64_t width) {
  std::string index("MMIDIDX\0\0", 9);
  put<std::uint64_t>(index, 1);
  index += code;
  put<std::uint64_t>(index, 3);
  put<std::uint64_t>(index, 3);
  for (const std::int32_t length : {3, 2, 1}) put(index, length);
  for (const std::int64_t start : {0, 3, 5}) put(index, start * width);
  for (const std::int64_t document : {0, 2, 3}) put(index, document);
  return index;
}

TEST(TokenStream, ReadsMegatron) {
  const std::vector<std::uint16_t> narrow{1, 2, 3, 4, 5, 60000};
  const std::vector<std::int32_t> wide{1, 2, 3, 4, 5, 100000};
  for (const bool is_wide : {false, true}) {
    const ScratchFolder folder;
    write_bytes(folder / "x.bin",
                is_wide ? packed<std::int32_t>(wide) : packed<std::uint16_t>(narrow));
    write_bytes(folder / "x.idx", is_wide ? megatron_index(4, 4) : megatron_index(8, 2));
    for (const char* name : {"x.bin", "x"}) {
      const auto stream = TokenStream::open({folder / name}, TokenFormat::automatic, Split::train);
      EXPECT_EQ(stream.token_bytes(), is_wide ? 4 : 2);
      EXPECT_EQ(read(stream, 2, 4), (std::vector<std::int32_t>{3, 4, 5, is_wide ? 100000 : 60000}));
    }
  }
}

TEST(TokenStream, RefusesDamagedMegatron) {
  const ScratchFolder folder;
  const std::vector<std::uint16_t> tokens{1, 2, 3, 4, 5, 6};
  write_bytes(folder / "x.bin", packed<std::uint16_t>(tokens));
  const auto open = [&](const std::string& index) {
    write_bytes(folder / "x.idx", index);
    TokenStream::open({folder / "x.bin"}, TokenFormat::automatic, Split::train);
  };
  const std::string good = megatron_index(8, 2);
  EXPECT_DATA_ERROR(open(good.substr(0, 20)), "is truncated");
  EXPECT_DATA_ERROR(open("X" + good.substr(1)), "no MMIDIDX mark");
  EXPECT_DATA_ERROR(open(good + "x"), "but its 3 sequences and 3 documents need");
  EXPECT_DATA_ERROR(open(megatron_index(6, 2)), "type code 6");
  EXPECT_DATA_ERROR(open(megatron_index(4, 4)), "accounts for 24 bytes, the .bin file has 12");
}

TEST(TokenStream, RefusesMixtures) {
  const ScratchFolder folder;
  const auto tokens = numbers(10);
  write_native(folder / "a.tok", tokens, 1000, 1);
  write_native(folder / "b.tok", tokens, 1000, 2);
  write_native(folder / "c.tok", tokens, 70000, 1);
  const auto open = [&](const char* x, const char* y) {
    TokenStream::open({folder / x, folder / y}, TokenFormat::automatic, Split::train);
  };
  EXPECT_DATA_ERROR(open("a.tok", "b.tok"), "with vocabulary 0000000000000002");
  EXPECT_DATA_ERROR(open("a.tok", "c.tok"), "has 4 bytes per token");
}

TEST(TokenStream, NoticesALostShard) {
  const ScratchFolder folder;
  write_native(folder / "train_00000.tok", numbers(10), 1000);
  write_bytes(folder / "meta.json", "{\"train_shards\": 2}");
  EXPECT_DATA_ERROR(TokenStream::open({folder.path()}, TokenFormat::automatic, Split::train),
                    "has 1 train token files, its meta.json says 2");
  EXPECT_DATA_ERROR(TokenStream::open({folder.path()}, TokenFormat::automatic, Split::val),
                    "no token files for validation");
}

}  // namespace
}  // namespace choir
