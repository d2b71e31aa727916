#include "src/store/tensor_file.hpp"

#include <gtest/gtest.h>

#include "src/store/gguf/gguf.hpp"
#include "src/store/llmc/llmc_model.hpp"
#include "src/store/safetensors/safetensors.hpp"
#include "test/unit/store/torch/archives.hpp"

namespace choir {
namespace {

using test::refusal;
using test::values;
using test::WeightsFolder;
using Floats = std::vector<float>;
using namespace std::string_literals;

void fill(TensorWriter& writer) {
  writer.lay_out();
  const Floats a{1, 2};
  writer.write("a", 0, 2, a.data(), DType::f32);
  writer.sync();
  writer.commit(writer.written());
}

TEST(OpenWeights, TellsFormatsApartByTheirBytes) {
  const WeightsFolder folder;
  SafetensorsWriter safetensors(folder.path(), {{"a", Encoding::f32, {2}}});
  fill(safetensors);
  GgufWriter gguf(folder.file("gguf.bin"), {}, {{"a", Encoding::f32, {2}}});
  fill(gguf);
  for (const std::string& path :
       {folder.path(), folder.file("model.safetensors"), folder.file("gguf.bin")})
    EXPECT_EQ(values(*open_weights(path), "a"), (Floats{1, 2})) << path;
  test::ZipBuilder zip;
  zip.add("r/data.pkl", "}.");
  EXPECT_TRUE(open_weights(folder.put("x", zip.bytes()))->tensors().empty());
  LlmcWriter llmc(folder.file("llmc"), {1, 1, 1, 1, 1});
  llmc.lay_out();
  llmc.commit(128 + 1 + 12 + 13 + 2 - 127);
  EXPECT_EQ(open_weights(folder.file("llmc"))->tensors().size(), 16u);
  const std::string nemo = test::tar_member("model_weights.ckpt", zip.bytes());
  EXPECT_TRUE(open_weights(folder.put("x.nemo", nemo))->tensors().empty());
}

TEST(OpenWeights, FindsAdaptersInTheirFolder) {
  const WeightsFolder folder;
  SafetensorsWriter writer(folder.path(), {{"a", Encoding::f32, {2}}}, {.stem = "adapter_model"});
  fill(writer);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"adapter_model.safetensors"});
  EXPECT_EQ(values(*open_weights(folder.path()), "a"), (Floats{1, 2}));
}

/// A folder of shards, each with one tensor of two numbers, in both formats.
struct Shards : testing::TestWithParam<const char*> {
  const std::string ending = GetParam();
  const bool safe = ending == ".safetensors";
  const std::string stem = safe ? "model" : "pytorch_model";
  const std::string index = stem + ending + ".index.json";
  WeightsFolder folder;

  std::string name(int shard, int of = 2) const {
    return stem + "-0000" + std::to_string(shard) + "-of-0000" + std::to_string(of) + ending;
  }
  std::string put_shard(int shard, const std::string& tensor, float first, int of = 2) {
    const Floats numbers{first, first + 1};
    const std::string data = test::bytes_of(numbers);
    if (safe) {
      std::string header =
          R"({")" + tensor + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
      return folder.put(name(shard, of),
                        test::bytes_of(std::uint64_t{header.size()}) + header + data);
    }
    // {tensor: _rebuild_tensor_v2(storage "0" of two floats, 0, (2,), (1,), False)}
    test::ZipBuilder zip;
    zip.add("r/data.pkl", "\x80\x02}X"s + static_cast<char>(tensor.size()) + "\0\0\0"s + tensor +
                              "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storage"s +
                              "ctorch\nFloatStorage\nX\1\0\0\0"s + "0X\3\0\0\0"s +
                              "cpuK\2tQK\0K\2\x85K\1\x85\x89tRs."s);
    zip.add("r/data/0", data);
    return folder.put(name(shard, of), zip.bytes());
  }
  void put_index(const std::string& first, const std::string& second) {
    folder.put(index, R"({"metadata":{"total_size":16},"weight_map":{)" + first + R"(":")" +
                          name(1) + R"(",)" + second + R"(":")" + name(2) + R"("}})");
  }
  std::string refused() const {
    return refusal([&] { open_weights(folder.path()); });
  }
};

TEST_P(Shards, AreReadWithTheirIndexAndWithout) {
  const std::string first = put_shard(1, "a", 1);
  put_shard(2, "b", 3);
  const auto expect_both = [](const std::string& path) {
    const auto weights = open_weights(path);
    EXPECT_EQ(weights->tensors().size(), 2u) << path;
    EXPECT_EQ(values(*weights, "a"), (Floats{1, 2})) << path;
    EXPECT_EQ(values(*weights, "b"), (Floats{3, 4})) << path;
  };
  expect_both(folder.path());
  expect_both(first);
  put_index("\"a", "\"b");
  for (const std::string& path : {folder.path(), first, folder.file(index)}) expect_both(path);
  // A download of one format often has the indices of both.
  const std::string other = safe ? "pytorch_model.bin.index.json" : "model.safetensors.index.json";
  folder.put(other, R"({"weight_map":{"a":"model-00001-of-00001)" + ending + R"("}})");
  expect_both(folder.path());
}

TEST_P(Shards, MustHoldTheTensorsOfTheirIndex) {
  put_shard(1, "a", 1);
  put_index("\"a", "\"b");
  EXPECT_SAYS(refused(), "/" + name(2) + "' is missing, which");
  put_shard(2, "c", 3);
  EXPECT_SAYS(refused(), "tensor 'b' is not in shard");
  put_index("\"a", "\"c\":\"" + name(1) + "\",\"b");
  EXPECT_SAYS(refused(), "tensor 'c' is not in shard");
  put_shard(2, "a", 3);
  folder.put(index, R"({"weight_map":{"a":")" + name(1) + R"("}})");
  EXPECT_EQ(refused(), "");
  std::filesystem::remove(folder.file(index));
  EXPECT_SAYS(refused(), "tensor 'a' is in '" + folder.file(name(1)) + "' and in '" +
                             folder.file(name(2)) + "'");
}

TEST_P(Shards, OfOneModelAreComplete) {
  put_shard(1, "a", 1, 3);
  put_shard(2, "b", 3, 3);
  EXPECT_SAYS(refused(),
              "' is one of 3 shards of a model, and one is not beside it: " + name(3, 3));
  put_shard(3, "c", 5, 3);
  EXPECT_EQ(values(*open_weights(folder.path()), "c"), (Floats{5, 6}));
}

INSTANTIATE_TEST_SUITE_P(OfBothFormats, Shards, testing::Values(".safetensors", ".bin"),
                         [](const auto& one) { return std::string(one.param).substr(1); });

TEST(OpenWeights, RefusesAnIndexThatLies) {
  const WeightsFolder folder;
  SafetensorsWriter writer(folder.path(), {{"a", Encoding::f32, {2}}, {"b", Encoding::f32, {2}}},
                           {.shard_bytes = 8});
  writer.lay_out();
  const Floats numbers{1, 2};
  for (const char* name : {"a", "b"}) writer.write(name, 0, 2, numbers.data(), DType::f32);
  writer.sync();
  writer.commit(writer.written());
  const std::string name = "model.safetensors.index.json", good = folder.bytes(name);
  const auto refused_index = [&](const std::string& from, const std::string& to) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    folder.put(name, bad);
    return refusal([&] { open_weights(folder.path()); });
  };
  EXPECT_SAYS(refused_index("model-00002-of", "model-00003-of"), "is missing, which");
  EXPECT_SAYS(refused_index("model-00002-of", "../model-00002-of"), "not a file beside it");
  EXPECT_SAYS(refused_index("\"b\": ", "\"d\": \"model-00002-of-00002.safetensors\", \"b\": "),
              "tensor 'd' is not in shard");
  EXPECT_SAYS(refused_index("\"b\": \"model-00002", "\"a\": \"model-00002"),
              "is given twice (first");
  EXPECT_SAYS(refused_index("weight_map", "weights"), "is not an index");
  folder.put(name, R"({"weight_map": {}})");
  EXPECT_SAYS(refusal([&] { open_weights(folder.path()); }), "lists no tensors");
}

TEST(OpenWeights, SaysWhatAFileIsInstead) {
  const WeightsFolder folder;
  const auto refused = [&](const std::string& bytes) {
    const std::string path = folder.put("x", bytes);
    return refusal([&] { open_weights(path); });
  };
  EXPECT_SAYS(refused(std::string("\xa1\xd9\x34\x01\x07\0\0\0", 8)),
              "is a file of tokens of llm.c (Llama 3, 32 bits)");
  EXPECT_SAYS(refused("\x89HDF\r\n\x1a\n"), "is an HDF5 file");
  EXPECT_SAYS(refused(""), "of an unknown kind");
  std::filesystem::remove(folder.file("x"));
  EXPECT_SAYS(refusal([&] { open_weights(folder.path()); }), "has no weights under a known name");
  EXPECT_SAYS(refusal([&] { open_weights(folder.file("none")); }), "No such file");
}

}  // namespace
}  // namespace choir
