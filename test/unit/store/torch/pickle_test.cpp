#include "src/store/torch/torch_checkpoint.hpp"

#include <gtest/gtest.h>

#include "test/unit/store/weights_fixture.hpp"

namespace choir {
namespace {

using test::from_hex;
using test::refusal;
using test::WeightsFolder;
using namespace std::string_literals;

std::string refused(const std::string& bytes) {
  return refusal([&] { Pickle pickle(bytes, "the pickle"); });
}

template <class T>
T held(const PickleValue* value) {
  EXPECT_NE(value, nullptr);
  const T* own = value == nullptr ? nullptr : value->as<T>();
  EXPECT_NE(own, nullptr);
  return own == nullptr ? T() : *own;
}

// nanoGPT's meta.pkl of the vocabulary "\n ehlo" and e with an acute accent, by Python's pickle.
TEST(Pickle, ReadsTheVocabularyOfNanoGpt) {
  const WeightsFolder folder;
  const Pickle pickle = read_pickle_file(folder.put(
      "meta.pkl",
      from_hex("80049571000000000000007d94288c0a766f6361625f73697a65944b078c0469746f73947d94284b00"
               "8c010a944b018c0120944b028c0165944b038c0168944b048c016c944b058c016f944b068c02c3a994"
               "758c0473746f69947d942868044b0068054b0168064b0268074b0368084b0468094b05680a4b067575"
               "2e")));
  const auto* meta = pickle.root().as<PickleDict>();
  ASSERT_NE(meta, nullptr);
  EXPECT_EQ(held<std::int64_t>(meta->find("vocab_size")), 7);
  const auto itos = held<PickleDict>(meta->find("itos"));
  ASSERT_EQ(itos.entries.size(), 7u);
  EXPECT_EQ(held<std::int64_t>(itos.entries[6].first), 6);
  EXPECT_EQ(held<std::string>(itos.entries[6].second), "\xc3\xa9");
  EXPECT_EQ(held<std::int64_t>(held<PickleDict>(meta->find("stoi")).find("o")), 5);
  EXPECT_EQ(meta->find("none"), nullptr);
}

// [-2, 40000, 2**40, -(2**40), 0 as LONG1, 1e-3, True, False, None, (1, 2, 3), {}] by opcodes.
TEST(Pickle, ReadsNumbersAndContainers) {
  const Pickle pickle(
      from_hex("8002 5d 28 4afeffffff 4d409c 8a06000000000001 8a06000000000 0ff 8a00"
               "473f50624dd2f1a9fc 88 89 4e 4b014b024b0387 7d 65 2e"),
      "it");
  const auto* list = pickle.root().as<PickleList>();
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(list->items.size(), 11u);
  EXPECT_FALSE(list->tuple);
  EXPECT_EQ(held<std::int64_t>(list->items[0]), -2);
  EXPECT_EQ(held<std::int64_t>(list->items[1]), 40000);
  EXPECT_EQ(held<std::int64_t>(list->items[2]), std::int64_t{1} << 40);
  EXPECT_EQ(held<std::int64_t>(list->items[3]), -(std::int64_t{1} << 40));
  EXPECT_EQ(held<std::int64_t>(list->items[4]), 0);
  EXPECT_EQ(held<double>(list->items[5]), 1e-3);
  EXPECT_TRUE(held<bool>(list->items[6]));
  EXPECT_FALSE(held<bool>(list->items[7]));
  EXPECT_NE(list->items[8]->as<std::monostate>(), nullptr);
  const auto tuple = held<PickleList>(list->items[9]);
  EXPECT_TRUE(tuple.tuple);
  EXPECT_EQ(held<std::int64_t>(tuple.items[2]), 3);
  EXPECT_NE(list->items[10]->as<PickleDict>(), nullptr);
}

TEST(Pickle, RunsNoCode) {
  EXPECT_SAYS(refused("cos\nsystem\n(X\x02\0\0\0lstR."s),
              "names 'os.system', which could run code");
  EXPECT_SAYS(refused("\x80\x04\x8c\x08"
                      "builtins\x8c\x04"
                      "eval\x93."s),
              "'builtins.eval'");
  EXPECT_SAYS(refused("ctorch\nload\n."), "'torch.load'");
  EXPECT_SAYS(refused("ctorch._utils\n_rebuild_tensor\n."), "'torch._utils._rebuild_tensor'");
  EXPECT_SAYS(refused("(ios\nsystem\n."), "the opcode INST");
  EXPECT_SAYS(refused(")o."), "the opcode OBJ");
  EXPECT_SAYS(refused("))\x81."), "the opcode NEWOBJ");
  EXPECT_SAYS(refused("\x82\x01."), "the opcode EXT");
  EXPECT_SAYS(refused("P1\n."), "the opcode PERSID");
  EXPECT_SAYS(refused("\xff"), "the opcode 0xff at byte 0");
  EXPECT_SAYS(refused("}}b."), "other than _metadata of a dict");
  EXPECT_SAYS(refused("ccollections\nOrderedDict\n}X\x01\0\0\0x}sb."s), "other than _metadata");
  EXPECT_SAYS(refused("ctorch\nFloatStorage\n)R."), "is not a function");
  EXPECT_SAYS(refused("ccollections\nOrderedDict\n(K\x01tR."), "an OrderedDict of arguments");
}

TEST(Pickle, MetadataOfAStateDictIsPassedOver) {
  const Pickle pickle("ccollections\nOrderedDict\n)R}X\x09\0\0\0_metadata}sb."s, "it");
  EXPECT_NE(pickle.root().as<PickleDict>(), nullptr);
}

TEST(Pickle, RefusesStreamsThatLie) {
  EXPECT_SAYS(refused(""), "ends at byte 0");
  EXPECT_SAYS(refused("K"), "ends at byte 1");
  EXPECT_SAYS(refused("X\xff\xff\xff\xff"
                      "abc"),
              "ends at byte");
  EXPECT_SAYS(refused("cos"), "a name without an end");
  EXPECT_SAYS(refused("."), "does not end with one value");
  EXPECT_SAYS(refused("NN."), "does not end with one value");
  EXPECT_SAYS(refused("(N."), "does not end with one value");
  EXPECT_SAYS(refused("t."), "a missing mark");
  EXPECT_SAYS(refused("N(\x85."), "takes a missing value");
  EXPECT_SAYS(refused("h\x07."), "recalls value 7");
  EXPECT_SAYS(refused("Na."), "takes a missing value");
  EXPECT_SAYS(refused("NNa."), "appends to a value that is not a list");
  EXPECT_SAYS(refused(")Na."), "appends to a value that is not a list");
  EXPECT_SAYS(refused("}(Nu."), "sets items of a value that is not a dict");
  EXPECT_SAYS(refused("\x80\x06N."), "has protocol 6");
  EXPECT_SAYS(refused("\x8a\x09"
                      "123456789."),
              "a whole number of 9 bytes");
  EXPECT_SAYS(refused("NQ."), "persistent id");
  EXPECT_SAYS(refused("\x80\x04\x95\x01"), "ends at byte");
}

// A list that contains itself is legal data; its memory is freed.
TEST(Pickle, MayReferToItself) {
  const Pickle pickle("]q\0h\0a."s, "it");
  const auto* list = pickle.root().as<PickleList>();
  ASSERT_EQ(list->items.size(), 1u);
  EXPECT_EQ(list->items[0], &pickle.root());
}

// Each byte pushes a value of a hundred bytes.
TEST(Pickle, HasNoMoreValuesThanItsSizeAllows) {
  const std::string nones(1'000'000, 'N');
  EXPECT_SAYS(refused("](" + nones + "e."), "has 1000004 bytes and more than 315537 values");
}

}  // namespace
}  // namespace choir
