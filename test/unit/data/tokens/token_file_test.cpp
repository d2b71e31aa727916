#include "src/data/text/token_file.hpp"

#include "src/data/text/token_stream.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::read_bytes;
using test::ScratchFolder;
using test::write_bytes;
using test::write_native;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

// An independent program wrote these bytes from the description (Python, struct.pack and a bitwise
// crc32c).
const std::string kGolden = from_hex(
    "43484f4952544f4b01000000040302010200000041000000040000000000000088776655443322115320ad830000"
    "0000000000000000000000000000b3156ce00100020003004000");

TEST(TokenFile, BytesAreAsDescribed) {
  const ScratchFolder folder;
  const std::int32_t tokens[] = {1, 2, 3, 64};
  write_native(folder / "a.tok", tokens, 65, 0x1122334455667788ull);
  EXPECT_EQ(read_bytes(folder / "a.tok"), kGolden);
  const TokenFileHeader header = read_token_file_header(folder / "a.tok");
  EXPECT_EQ(header.count, 4u);
  EXPECT_EQ(header.vocab_size, 65u);
  EXPECT_EQ(header.vocab_hash, 0x1122334455667788ull);
}

TEST(TokenFile, WidthFollowsTheVocabulary) {
  EXPECT_EQ(token_bytes_for(65535), 2);
  EXPECT_EQ(token_bytes_for(65536), 4);
  const ScratchFolder folder;
  const std::int32_t tokens[] = {100000, 0};
  write_native(folder / "wide.tok", tokens, 100001);
  const auto stream =
      TokenStream::open({folder / "wide.tok"}, TokenFormat::automatic, Split::train);
  std::int32_t back[2];
  stream.read(0, 2, back);
  EXPECT_EQ(back[0], 100000);
  EXPECT_EQ(back[1], 0);
}

TEST(TokenFile, UnfinishedFileLeavesNothing) {
  const ScratchFolder folder;
  {
    TokenFileWriter writer(folder / "a.tok", 10, 1);
    const std::int32_t token = 3;
    writer.append({&token, 1});
    const std::int32_t bad = 10;
    EXPECT_DATA_ERROR(writer.append({&bad, 1}), "token id 10 outside the vocabulary of 10");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

class DamagedTokenFile : public testing::Test {
 protected:
  std::string said_about(const std::string& bytes) {
    const std::string path = folder_ / "damaged.tok";
    write_bytes(path, bytes);
    return test::data_error_of(
        [&] { TokenStream::open({path}, TokenFormat::automatic, Split::train).verify(0, 65); });
  }
  static std::string with(std::size_t at, char bits) {
    std::string bytes = kGolden;
    bytes[at] = static_cast<char>(bytes[at] ^ bits);
    return bytes;
  }
  ScratchFolder folder_;
};

TEST_F(DamagedTokenFile, IsNamedAndExplained) {
  EXPECT_EQ(said_about(kGolden), "");
  const auto expect = [&](const std::string& bytes, const std::string& words) {
    const std::string said = said_about(bytes);
    EXPECT_NE(said.find(words), std::string::npos) << said;
    EXPECT_NE(said.find("damaged.tok"), std::string::npos) << said;
  };
  expect("", "is empty");
  expect(kGolden.substr(0, 63), "is truncated: 63 bytes");
  expect(kGolden.substr(0, 71), "promises 4 tokens, 3 are there");
  expect(kGolden + "x", "has 1 bytes after its 4 tokens");
  expect(with(0, 1), "not a native token file");
  expect(with(8, 2), "has version 3");
  expect(with(24, 1), "corrupt header");
  expect(with(50, 1), "corrupt header");
  expect(with(60, 1), "corrupt header");
  expect(with(66, 1), "is corrupt: crc32c");
  std::string other_order = kGolden;
  std::reverse(other_order.begin() + 12, other_order.begin() + 16);
  expect(other_order, "other byte order");
}

TEST_F(DamagedTokenFile, IdsOutsideTheVocabularyAreFound) {
  write_bytes(folder_ / "a.tok", kGolden);
  const auto stream = TokenStream::open({folder_ / "a.tok"}, TokenFormat::automatic, Split::train);
  EXPECT_DATA_ERROR(stream.verify(0, 64), "token 3 is 64, the vocabulary has 64 entries");
}

TEST_F(DamagedTokenFile, MissingFile) {
  EXPECT_DATA_ERROR(read_token_file_header(folder_ / "none.tok"), "none.tok': No such file");
  EXPECT_DATA_ERROR(TokenStream::open({folder_ / "none.tok"}, TokenFormat::automatic, Split::train),
                    "does not exist");
}

}  // namespace
}  // namespace choir
