#include "src/store/torch/nemo_archive.hpp"

#include <gtest/gtest.h>

#include "choir_features.hpp"
#include "test/support/growth.hpp"
#include "test/unit/store/torch/archives.hpp"

namespace choir {
namespace {

using test::bytes_of;
using test::from_hex;
using test::refusal;
using test::tar_member;
using test::values;
using test::WeightsFolder;
using test::ZipBuilder;
using Floats = std::vector<float>;
using namespace std::string_literals;

/// A state_dict of one tensor, b = [1, 2].
std::string weights() {
  ZipBuilder zip;
  zip.add("m/data.pkl",
          "\x80\x02}X\x01\0\0\0bctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n"
          "FloatStorage\nX\x01\0\0\0"
          "0X\x03\0\0\0cpuK\x02tQK\0K\x02\x85K\x01\x85\x89)tRs."s);
  zip.add("m/data/0", bytes_of(Floats{1, 2}));
  return zip.bytes();
}

const std::string kEnd(1024, '\0');

struct Nemo : testing::Test {
  static std::string members() {
    return tar_member("./", "", '5') + tar_member("./model_config.yaml", "target: x\n") +
           tar_member("./model_weights.ckpt", weights());
  }
  std::string refused(const std::string& bytes) {
    const std::string path = folder.put("bad.nemo", bytes);
    return refusal([&] { NemoArchive archive(path); });
  }
  WeightsFolder folder;
};

TEST_F(Nemo, ReadsWeightsAndFilesInPlace) {
  const NemoArchive archive(
      folder.put("a.nemo", members() + tar_member("0f_tokenizer.model", "pieces") + kEnd));
  EXPECT_EQ(values(*archive.open_weights(), "b"), (Floats{1, 2}));
  EXPECT_EQ(archive.members(), (std::vector<std::string>{"model_config.yaml", "model_weights.ckpt",
                                                         "0f_tokenizer.model"}));
  EXPECT_EQ(archive.read_member("model_config.yaml"), "target: x\n");
  EXPECT_EQ(archive.read_member("0f_tokenizer.model"), "pieces");
  EXPECT_SAYS(refusal([&] { archive.read_member("none"); }), "has no 'none'");
}

TEST_F(Nemo, ReadsLongNamesAndSizesOfPax) {
  const std::string name(150, 'n');
  const std::string record = "160 path=" + name + "\n";
  ASSERT_EQ(record.size(), 160u);
  const NemoArchive archive(folder.put(
      "a.nemo", members() + tar_member("pax", record + "9 size=3\n", 'x') + tar_member("n", "one") +
                    tar_member("././@LongLink", std::string(120, 'm') + "\0"s, 'L') +
                    tar_member("m", "two") + kEnd));
  EXPECT_EQ(archive.read_member(name), "one");
  EXPECT_EQ(archive.read_member(std::string(120, 'm')), "two");
}

#ifdef CHOIR_HAVE_ARCHIVE
// Stored blocks of deflate, which gzip writes if the data cannot be compressed.
std::string gzipped(const std::string& bytes) {
  std::string all = from_hex("1f8b0800000000000003");
  for (std::size_t at = 0; at < bytes.size(); at += 65535) {
    const std::string part = bytes.substr(at, 65535);
    const auto size = static_cast<std::uint16_t>(part.size());
    all += std::string(1, at + 65535 >= bytes.size() ? '\1' : '\0') + bytes_of(size) +
           bytes_of(static_cast<std::uint16_t>(~size)) + part;
  }
  std::uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
  }
  return all + bytes_of(~crc) + bytes_of(static_cast<std::uint32_t>(bytes.size()));
}

TEST_F(Nemo, ReadsCompressedArchives) {
  const std::string packed = gzipped(members() + kEnd);
  const NemoArchive archive(folder.put("a.nemo", packed));
  EXPECT_EQ(values(*archive.open_weights(), "b"), (Floats{1, 2}));
  EXPECT_EQ(archive.read_member("model_config.yaml"), "target: x\n");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a.nemo"});
  EXPECT_SAYS(refused(packed.substr(0, packed.size() / 2)), "is damaged");
  EXPECT_SAYS(refused(gzipped(packed)), "compressed twice");
}
#endif

TEST_F(Nemo, RefusesArchivesThatLie) {
  EXPECT_EQ(refused(members() + kEnd), "");
  EXPECT_SAYS(refused(members() + tar_member("x", "", '2') + kEnd), "'x' that is a link");
  EXPECT_SAYS(refused(members() + tar_member("x", "", '1') + kEnd), "'x' that is a link");
  EXPECT_SAYS(refused(members() + tar_member("x", "", '3') + kEnd), "a link or a device");
  EXPECT_SAYS(refused(members() + tar_member("../x", "y") + kEnd), "with the path '../x'");
  EXPECT_SAYS(refused(members() + tar_member("a/../../x", "y") + kEnd), "with the path");
  EXPECT_SAYS(refused(members() + tar_member("/etc/x", "y") + kEnd), "with the path '/etc/x'");
  EXPECT_SAYS(refused(members() + tar_member("model_config.yaml", "y") + kEnd),
              "two members 'model_config.yaml'");
  EXPECT_SAYS(refused(members() + tar_member("x", "y", '0', 1 << 20)), "ends inside of the member");
  EXPECT_SAYS(refused(members() + tar_member("x", "99 path=y\n", 'x') + kEnd),
              "a damaged extended header");
  EXPECT_SAYS(refused(members() + tar_member("x", "14 linkpath=y\n", 'x') + kEnd), "has a link");
  std::string flipped = members() + kEnd;
  flipped[3] = 'x';
  EXPECT_SAYS(refused(flipped), "a damaged header at byte 0");
  const NemoArchive empty(folder.put("empty.nemo", tar_member("model_config.yaml", "x") + kEnd));
  EXPECT_SAYS(refusal([&] { empty.open_weights(); }), "has no 'model_weights.ckpt'");
  EXPECT_SAYS(refused(kEnd), "contains no files");
  EXPECT_SAYS(refused(""), "contains no files");
  EXPECT_SAYS(refusal([&] { NemoArchive archive(folder.path()); }), "sharded format of NeMo 2");
}

TEST_F(Nemo, TimeGrowsWithTheLengthOfAName) {
  const auto seconds = [&](int steps) {
    std::string name;
    for (int i = 0; i < steps; ++i) name += "./";
    const std::string path =
        folder.put("a.nemo", members() + tar_member("././@LongLink", name + "n\0"s, 'L') +
                                 tar_member("m", "one") + kEnd);
    return test::least_seconds([&] { EXPECT_EQ(NemoArchive(path).read_member("n"), "one"); });
  };
  EXPECT_LT(test::growth("the name of a member", seconds(480'000), seconds(60'000)),
            test::kEightfoldInput);
}

}  // namespace
}  // namespace choir
