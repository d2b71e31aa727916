#include "src/data/speech/label_file.hpp"

#include "choir/core/error.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::read_bytes;
using test::ScratchFolder;
using test::write_bytes;

using Utterances = std::vector<std::vector<std::int32_t>>;
const Utterances kSpoken{{3, 1, 4, 1, 5}, {}, {9}, {2, 6}};
const std::vector<bool> kBad{false, false, false, true};
constexpr std::uint64_t kCatalog = 0x1234567890abcdefull;

std::vector<std::int32_t> ids(const LabelFile& labels, std::int64_t i) {
  return {labels[i].begin(), labels[i].end()};
}

void expect_spoken(const LabelFile& labels, std::int64_t vocab_size) {
  ASSERT_EQ(labels.size(), 4);
  EXPECT_EQ(labels.vocab_size(), vocab_size);
  EXPECT_EQ(labels.tokenizer_hash(), 42u);
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(ids(labels, i), kSpoken[static_cast<std::size_t>(i)]);
    EXPECT_FALSE(labels.bad(i));
  }
  EXPECT_TRUE(labels.bad(3));
  EXPECT_TRUE(labels[3].empty());  // a text that the tokenizer cannot encode has no labels
}

TEST(LabelFile, ThereNeedBeNone) {
  const LabelFile none = LabelFile::none(3);
  for (const LabelFile& labels : {none, LabelFile::deserialise(none.serialise())}) {
    EXPECT_EQ(labels.size(), 3);
    EXPECT_EQ(labels.vocab_size(), 0);
    EXPECT_TRUE(labels[2].empty());
    EXPECT_FALSE(labels.bad(2));
  }
}

TEST(LabelFile, ComesBackAsItWasWritten) {
  const ScratchFolder folder;
  for (const std::int64_t vocab : {10, 70000}) {  // 2 and 4 bytes per id
    LabelFile::write(folder.path(), "char", kCatalog, 42, vocab, kSpoken, kBad);
    const LabelFile labels = LabelFile::open(folder.path(), "char", kCatalog);
    expect_spoken(labels, vocab);
    expect_spoken(LabelFile::deserialise(labels.serialise()), vocab);
    EXPECT_FALSE(std::filesystem::exists(folder / "labels.char.bin.tmp"));
  }
}

TEST(LabelFile, HasTheLayoutItsHeaderDescribes) {
  const ScratchFolder folder;
  LabelFile::write(folder.path(), "a", kCatalog, 42, 10, kSpoken, kBad);
  const std::string bytes = read_bytes(folder / "labels.a.bin");
  ASSERT_EQ(bytes.size(), 64u + 4 * 4 + 2 * 6);  // 4 lengths, 6 ids of u16
  EXPECT_EQ(bytes.substr(0, 8), "CHOIRLBL");
  EXPECT_EQ(bytes.substr(16, 8), std::string("\xef\xcd\xab\x90\x78\x56\x34\x12"));
  EXPECT_EQ(bytes.substr(76, 4), std::string("\xff\xff\xff\xff"));  // the bad one
  EXPECT_EQ(bytes.substr(80, 4), std::string("\x03\x00\x01\x00", 4));
}

TEST(LabelFile, LargeIdsKeepTheirBits) {
  const ScratchFolder folder;
  const Utterances large{{65534, 0}, {40000}};
  LabelFile::write(folder.path(), "a", 1, 2, 65535, large, {false, false});
  const LabelFile narrow = LabelFile::open(folder.path(), "a", 1);
  EXPECT_EQ(ids(narrow, 0), large[0]);
  EXPECT_EQ(ids(narrow, 1), large[1]);
}

TEST(LabelFile, NothingAtAll) {
  const ScratchFolder folder;
  LabelFile::write(folder.path(), "none", 1, 2, 5, {}, {});
  EXPECT_EQ(LabelFile::open(folder.path(), "none", 1).size(), 0);
  EXPECT_EQ(LabelFile().size(), 0);
}

TEST(LabelFile, EveryFlippedByteIsNoticed) {
  const ScratchFolder folder;
  LabelFile::write(folder.path(), "a", kCatalog, 42, 10, kSpoken, kBad);
  const std::string good = read_bytes(folder / "labels.a.bin");
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string broken = good;
    broken[i] = static_cast<char>(broken[i] ^ 0x10);
    write_bytes(folder / "labels.a.bin", broken);
    EXPECT_THROW(LabelFile::open(folder.path(), "a", kCatalog), DataError) << "byte " << i;
  }
  for (std::size_t length = 0; length < good.size(); ++length) {
    write_bytes(folder / "labels.a.bin", good.substr(0, length));
    EXPECT_THROW(LabelFile::open(folder.path(), "a", kCatalog), DataError) << length << " bytes";
  }
  write_bytes(folder / "labels.a.bin", good + "x");
  EXPECT_DATA_ERROR(LabelFile::open(folder.path(), "a", kCatalog), "truncated or too long");
}

TEST(LabelFile, RefusesByName) {
  const ScratchFolder folder;
  EXPECT_DATA_ERROR(LabelFile::open(folder.path(), "bpe", 1), "labels.bpe.bin");
  LabelFile::write(folder.path(), "bpe", kCatalog, 42, 10, kSpoken, kBad);
  EXPECT_DATA_ERROR(LabelFile::open(folder.path(), "bpe", kCatalog + 1), "another state");
  EXPECT_DATA_ERROR(LabelFile::write(folder.path(), "bpe", kCatalog, 42, 9, kSpoken, kBad),
                    "token id 9 of utterance 2");
  for (const char* name : {"", "a/b", "..", "a b"})
    EXPECT_THROW(LabelFile::path(folder.path(), name), DeckError) << name;
}

}  // namespace
}  // namespace choir
