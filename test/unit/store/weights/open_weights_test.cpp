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

TEST(OpenWeights, PartsNeedNoIndex) {
  const WeightsFolder folder;
  const auto write = [&](const char* stem, const char* tensor) {
    SafetensorsWriter writer(folder.path(), {{tensor, Encoding::f32, {2}}}, {.stem = stem});
    writer.lay_out();
    const Floats values{1, 2};
    writer.write(tensor, 0, 2, values.data(), DType::f32);
    writer.sync();
    writer.commit(writer.written());
    return folder.file(std::string(stem) + ".safetensors");
  };
  const std::string second = write("model-00002-of-00003", "b");
  write("model-00003-of-00003", "c");
  EXPECT_SAYS(refusal([&] { open_weights(folder.path()); }),
              "is one of 3 files of a model, 1 of which are not beside it; the first is "
              "model-00001-of-00003.safetensors");
  write("model-00001-of-00003", "a");
  for (const std::string& path : {std::string(folder.path()), second}) {
    const auto weights = open_weights(path);
    ASSERT_EQ(weights->tensors().size(), 3u) << path;
    for (const char* name : {"a", "b", "c"}) EXPECT_EQ(values(*weights, name), (Floats{1, 2}));
  }
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
