#include "src/store/torch/torch_checkpoint.hpp"

#include <gtest/gtest.h>

#include "test/unit/store/torch/archives.hpp"

namespace choir {
namespace {

using test::bytes_of;
using test::from_hex;
using test::refusal;
using test::values;
using test::WeightsFolder;
using test::ZipBuilder;
using Floats = std::vector<float>;
using Integers = std::vector<std::int64_t>;
using namespace std::string_literals;

// The bytes of torch.save for an OrderedDict of w = arange(6) as [2, 3], wt = its transpose, h =
// [1.5] in bfloat16 and n = 3.
const std::string kTiny = from_hex(
    "800263636f6c6c656374696f6e730a4f726465726564446963740a7100295271012858010000007771026374"
    "6f7263682e5f7574696c730a5f72656275696c645f74656e736f725f76320a71032828580700000073746f72"
    "616765710463746f7263680a466c6f617453746f726167650a71055801000000307106580300000063707571"
    "074b06747108514b004b024b038671094b034b0186710a8968002952710b74710c52710d5802000000777471"
    "0e6803282868046805680668074b0674710f514b004b034b028671104b014b03867111896800295271127471"
    "13527114580100000068711568032828680463746f7263680a42466c6f6174313653746f726167650a711658"
    "0100000031711768074b01747118514b004b018571194b0185711a8968002952711b74711c52711d58010000"
    "006e711e68032828680463746f7263680a4c6f6e6753746f726167650a711f580100000032712068074b0174"
    "7121514b00292989680029527122747123527124752e");
// The pickle of {w: two elements of float8_e4m3fn, u: two of uint16}.
const std::string kUntyped = from_hex(
    "80027d710028580100000077710163746f7263682e5f7574696c730a5f72656275696c645f74656e736f725f"
    "76330a71022828580700000073746f72616765710363746f7263682e73746f726167650a556e747970656453"
    "746f726167650a71045801000000307105580300000063707571064b02747107514b004b028571084b018571"
    "098963636f6c6c656374696f6e730a4f726465726564446963740a710a2952710b63746f7263680a666c6f61"
    "74385f65346d33666e0a710c74710d52710e580100000075710f680228286803680458010000003171106806"
    "4b04747111514b004b028571124b0185711389680a2952711463746f7263680a75696e7431360a7115747116"
    "527117752e");

std::string text(const std::string& s) {
  return "X" + bytes_of(static_cast<std::uint32_t>(s.size())) + s;
}
std::string number(std::int64_t n) {
  return "\x8a\x08"s + bytes_of(n);
}
std::string tuple(const Integers& numbers) {
  std::string all = "(";
  for (const std::int64_t n : numbers) all += number(n);
  return all + "t";
}

/// The opcodes of the call that rebuilds one tensor.
struct Tensor {
  std::string type = "torch\nFloatStorage", key = "0";
  std::int64_t elements = 6, offset = 0;
  Integers shape{2, 3}, stride{3, 1};
  std::string more{};  // arguments behind the hooks

  std::string call() const {
    return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "c" + type + "\n" +
           text(key) + text("cpu") + number(elements) + "tQ" + number(offset) + tuple(shape) +
           tuple(stride) + "\x89)" + more + "tR";
  }
  std::string pickle() const { return "\x80\x02}" + text("w") + call() + "s."; }
};

struct TorchZip : testing::Test {
  static ZipBuilder zip_of(const std::string& pickle) {
    ZipBuilder zip;
    zip.add("r/data.pkl", pickle);
    zip.add("r/byteorder", "little");
    zip.add("r/data/0", bytes_of(Floats{0, 1, 2, 3, 4, 5}));
    return zip;
  }
  std::string refused_bytes(const std::string& bytes) {
    const std::string path = folder.put("bad.pt", bytes);
    return refusal([&] { TorchCheckpoint checkpoint(path); });
  }
  std::string refused(const ZipBuilder& zip) { return refused_bytes(zip.bytes()); }
  std::string refused(const Tensor& tensor) { return refused(zip_of(tensor.pickle())); }
  std::string refused_with(ZipBuilder::Member member) {
    ZipBuilder zip = zip_of(Tensor().pickle());
    zip.add(std::move(member));
    return refused(zip);
  }
  WeightsFolder folder;
};

TEST_F(TorchZip, ReadsWhatTorchSaved) {
  ZipBuilder zip;
  zip.add("tiny/data.pkl", kTiny);
  zip.add("tiny/.format_version", "1");
  zip.add("tiny/byteorder", "little");
  zip.add("tiny/data/0", bytes_of(Floats{0, 1, 2, 3, 4, 5}));
  zip.add("tiny/data/1", from_hex("c03f"));
  zip.add("tiny/data/2", bytes_of(std::int64_t{3}));
  zip.add("tiny/version", "3\n");
  const TorchCheckpoint tiny(folder.put("tiny.pt", zip.bytes()));
  ASSERT_EQ(tiny.tensors().size(), 4u);
  EXPECT_EQ(tiny.tensors()[1].name, "wt");
  EXPECT_EQ(values(tiny, "w"), (Floats{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(tiny.at("wt").shape, Shape({3, 2}));
  EXPECT_EQ(values(tiny, "wt"), (Floats{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(values<double>(tiny, "wt"), (std::vector<double>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(values(tiny, "h"), Floats{1.5});
  EXPECT_EQ(tiny.at("n").shape, Shape());
  EXPECT_EQ(values<std::int64_t>(tiny, "n"), Integers{3});
  Floats slab(3);
  tiny.read("wt", 2, 3, slab.data(), DType::f32);
  EXPECT_EQ(slab, (Floats{1, 4, 2}));
}

TEST_F(TorchZip, ReadsStoragesWithoutAType) {
  ZipBuilder zip;
  zip.add("p8/data.pkl", kUntyped);
  zip.add("p8/data/0", "88");
  zip.add("p8/data/1", from_hex("01000100"));
  const TorchCheckpoint reader(folder.put("p8.pt", zip.bytes()));
  EXPECT_EQ(reader.at("w").encoding, Encoding::f8_e4m3);
  EXPECT_SAYS(refusal([&] { values(reader, "w"); }), "stored as F8_E4M3");
  EXPECT_EQ(values<std::uint16_t>(reader, "u"), (std::vector<std::uint16_t>{1, 1}));
}

// {model: {w: ...}, list: [5, tensor], args: {n: 7}}: names are paths, and the other values can be
// queried.
TEST_F(TorchZip, NamesAreThePathsToTensors) {
  const std::string pickle = "\x80\x02}(" + text("model") + "}" + text("w") + Tensor().call() +
                             "s" + text("list") + "](" + number(5) +
                             Tensor{.offset = 4, .shape = {2}, .stride = {1}}.call() + "e" +
                             text("args") + "}" + text("n") + number(7) + "su.";
  const TorchCheckpoint reader(folder.put("ckpt.pt", zip_of(pickle).bytes()));
  ASSERT_EQ(reader.tensors().size(), 2u);
  EXPECT_EQ(values(reader, "model/w"), (Floats{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values(reader, "list/1"), (Floats{4, 5}));
  const auto* root = reader.root().as<PickleDict>();
  ASSERT_NE(root, nullptr);
  const auto* args = root->find("args")->as<PickleDict>();
  ASSERT_NE(args, nullptr);
  EXPECT_EQ(*args->find("n")->as<std::int64_t>(), 7);
}

TEST_F(TorchZip, ViewsOfAllKinds) {
  const auto read = [&](const Tensor& tensor) {
    return values(TorchCheckpoint(folder.put("v.pt", zip_of(tensor.pickle()).bytes())), "w");
  };
  EXPECT_EQ(read({.shape = {2, 4}, .stride = {0, 1}}), (Floats{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(read({.offset = 1, .shape = {3}, .stride = {2}}), (Floats{1, 3, 5}));
  EXPECT_EQ(read({.shape = {2, 1, 2}, .stride = {2, 99, 1}}), (Floats{0, 1, 2, 3}));
  EXPECT_EQ(read({.shape = {0, 3}, .stride = {3, 1}}), Floats{});
}

TEST_F(TorchZip, RefusesTensorsThatLie) {
  EXPECT_EQ(refused(Tensor()), "");
  EXPECT_SAYS(refused({.shape = {3, 3}}), "tensor 'w' in");
  EXPECT_SAYS(refused({.shape = {3, 3}}), "reaches beyond its storage 'r/data/0'");
  EXPECT_SAYS(refused({.offset = 1}), "reaches beyond");
  EXPECT_SAYS(refused({.stride = {4, 1}}), "reaches beyond");
  EXPECT_SAYS(refused({.offset = -1}), "that do not match");
  EXPECT_SAYS(refused({.stride = {3}}), "that do not match");
  EXPECT_SAYS(refused({.stride = {-3, 1}}), "has the stride -3");
  EXPECT_SAYS(refused({.stride = {std::int64_t{1} << 62, 1}}), "has the stride");
  EXPECT_SAYS(refused({.shape = {-2, 3}}), "has the extent -2");
  EXPECT_SAYS(refused({.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40}}),
              "an impossible number of elements");
  EXPECT_SAYS(refused({.elements = 7}), "which has 24 bytes, not 7 elements");
  EXPECT_SAYS(refused({.elements = std::int64_t{1} << 62}), "which has 24 bytes");
  EXPECT_SAYS(refused({.key = "1"}), "is stored in 'r/data/1', which is missing");
  EXPECT_SAYS(refused({.type = "torch\nComplexFloatStorage"}), "'torch.ComplexFloatStorage'");
  EXPECT_SAYS(refused({.more = "}X\x03\0\0\0negI01\ns"s}), "opcode");
  EXPECT_SAYS(refused({.more = "}" + text("neg") + "\x88s"}), "a tensor with metadata");
}

TEST_F(TorchZip, RefusesPicklesWithoutEnd) {
  EXPECT_SAYS(refused(zip_of("]q\0h\0a."s)), "contains itself");
  std::string doubling = Tensor().call();  // each pair contains the one before twice
  for (char i = 0; i < 40; ++i) doubling += "q"s + i + "h" + i + "\x86";
  EXPECT_SAYS(refused(zip_of(doubling + ".")), "contains itself");
}

TEST_F(TorchZip, RefusesArchivesThatLie) {
  using Member = ZipBuilder::Member;
  EXPECT_SAYS(refused_with(Member{.name = "r/x", .bytes = "x", .method = 8}),
              "has the compressed member 'r/x'");
  EXPECT_SAYS(refused_with(Member{.name = "r/x", .bytes = "x", .flags = 1}),
              "has the encrypted member 'r/x'");
  EXPECT_SAYS(refused_with(Member{.name = "r/x", .bytes = "x", .local_name = "r/y"}),
              "does not have the member 'r/x' at its listed position");
  EXPECT_SAYS(refused_with(Member{.name = "r/x", .bytes = "x", .header_shift = 1}),
              "does not have the member 'r/x' at its listed position");
  EXPECT_SAYS(refused_with(Member{.name = "r/x", .bytes = "x", .claimed_bytes = 2}),
              "has the member 'r/x' reach into its directory");
  EXPECT_SAYS(refused_with(Member{.name = "r/x", .bytes = "x", .claimed_bytes = 1 << 30}),
              "points to byte");
  EXPECT_SAYS(refused_with(Member{.name = "r/data/0", .bytes = "x"}), "two members 'r/data/0'");
  EXPECT_SAYS(refused_with(Member{.name = "../x", .bytes = "x"}), "a member with the path '../x'");
  EXPECT_SAYS(refused_with(Member{.name = "/x", .bytes = "x"}), "a member with the path '/x'");
  EXPECT_SAYS(refused_with(Member{.name = "s/data.pkl", .bytes = "N."}), "has 2 members data.pkl");
  EXPECT_SAYS(refused_with(Member{.name = "r/constants.pkl", .bytes = ")."}),
              "a TorchScript program");
  ZipBuilder overlapping;
  overlapping.add(Member{.name = "a", .bytes = "x", .claimed_bytes = 20});
  overlapping.add("b", "y");
  EXPECT_SAYS(refused(overlapping), "has the members 'a' and 'b' overlap");
  const std::string good = zip_of(Tensor().pickle()).bytes();
  for (std::size_t cut = 1; cut < good.size(); cut += 7)
    EXPECT_NE(refused_bytes(good.substr(0, good.size() - cut)), "") << cut;
  EXPECT_SAYS(refused_bytes(good + "x"), "has no directory at its end");
}

TEST_F(TorchZip, RefusesOtherFormats) {
  EXPECT_SAYS(refused_bytes(from_hex("80028a0a6cfc9c46f9206aa85019") + "."), "before version 1.6");
  EXPECT_SAYS(refused_bytes("hello"), "is not an archive of torch.save");
  EXPECT_SAYS(refused_bytes(""), "is not an archive of torch.save");
  ZipBuilder none;
  none.add("r/x", "x");
  EXPECT_SAYS(refused(none), "has 0 members data.pkl");
  ZipBuilder big = none;
  big.add("r/data.pkl", "}.");
  big.add("r/byteorder", "big");
  EXPECT_SAYS(refused(big), "a big-endian machine");
}

TEST_F(TorchZip, ReadsDirectoriesOf64Bits) {
  ZipBuilder zip;
  zip.add("r/data.pkl", Tensor().pickle());
  zip.add({.name = "r/data/0", .bytes = bytes_of(Floats{0, 1, 2, 3, 4, 5}), .in64 = true});
  const TorchCheckpoint reader(folder.put("z64.pt", zip.bytes(true)));
  EXPECT_EQ(values(reader, "w"), (Floats{0, 1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace choir
