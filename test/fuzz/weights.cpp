// Fuzzes files of weights. The first letter selects how they are opened: 'w': by their first bytes;
// 'i': an index beside a shard; 'p': a bare pickle; 'P': the pickle of an otherwise valid torch
// archive.
#include "src/store/safetensors/safetensors.hpp"
#include "src/store/tensor_file.hpp"
#include "src/store/torch/torch_checkpoint.hpp"
#include "test/fuzz/fuzz.hpp"
#include "test/unit/store/torch/archives.hpp"

namespace choir::fuzz {
namespace {

using namespace std::string_literals;

const std::string kTensorPickle =
    "\x80\x02}X\x01\0\0\0bctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n"
    "FloatStorage\nX\x01\0\0\0"
    "0X\x03\0\0\0cpuK\x02tQK\0K\x02\x85K\x01\x85\x89)tRs."s;
const std::string kShardHeader = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

std::string torch_archive(std::string_view pickle) {
  test::ZipBuilder zip;
  zip.add("r/data.pkl", std::string(pickle));
  zip.add("r/byteorder", "little");
  zip.add("r/data/0", std::string(8, '\1'));
  return zip.bytes();
}

std::string safetensors(const std::string& header, const std::string& data) {
  return bytes_of(static_cast<std::uint64_t>(header.size())) + header + data;
}

std::string gguf() {
  std::string bytes = "GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"s +
                      "\x01\0\0\0\0\0\0\0k\x09\0\0\0\x08\0\0\0\x01\0\0\0\0\0\0\0"s +
                      "\x02\0\0\0\0\0\0\0ab\x01\0\0\0\0\0\0\0w\x01\0\0\0"s +
                      "\x20\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0"s;
  bytes.resize((bytes.size() + 31) / 32 * 32, '\0');
  return bytes + "\0\x3c"s + std::string(32, '\x07');
}

std::string llmc() {
  std::string bytes;
  for (const std::int32_t number : {20240326, 5, 1, 1, 1, 1, 1, 1}) bytes += bytes_of(number);
  bytes.resize(1024 + 2 * (1 + 1 + 12 + 13 + 2), '\0');
  return bytes;
}

void try_reader(const TensorReader& reader) {
  constexpr std::int64_t kMost = 1 << 12;
  std::vector<double> numbers(kMost);
  for (const TensorEntry& entry : reader.tensors()) {
    require(reader.find(entry.name) == &entry, "a tensor that is not found");
    require(entry.bytes() >= 0, "a tensor of negative size");
    const std::int64_t count = std::min(entry.shape.count(), kMost),
                       first = entry.shape.count() - count;
    accepted([&] { reader.read(entry.name, first, count, numbers.data(), DType::f64); });
    accepted([&] { reader.read(entry.name, first, count, numbers.data(), DType::i64); });
    accepted([&] {
      reader.read(entry.name, 0, std::min<std::int64_t>(count, 1), numbers.data(), DType::f16);
    });
  }
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string archive = torch_archive(kTensorPickle);
  return {"w" + safetensors(kShardHeader, std::string(8, '\0')),
          "w" + safetensors(R"({"__metadata__":{"format":"pt"},"z":{"dtype":"BOOL","shape":[0],)"
                            R"("data_offsets":[0,0]},"b":{"dtype":"BF16","shape":[1,2],)"
                            R"("data_offsets":[0,4]}} )",
                            std::string(4, '\1')),
          "w" + gguf(),
          "w" + llmc(),
          "w" + archive,
          "w" + test::tar_member("./model_weights.ckpt", archive) +
              test::tar_member("pax", "12 path=abc\n", 'x') + test::tar_member("x", "y"),
          R"(i{"metadata":{"total_size":8},"weight_map":{"a":"shard.safetensors"}})",
          "p\x80\x04\x95\x08\0\0\0\0\0\0\0}\x94(\x8c\x01\x61K\x01\x8c\x01"
          "bG\0\0\0\0\0\0\0\0u."s,
          "p](J\0\0\0\0M\0\0\x8a\x02\0\x01\x88\x89N(t)\x85\x86\x87"
          "eq\0h\0a."s,
          "P" + kTensorPickle};
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  const char kind = input.front();
  const std::string_view bytes = input.substr(1);
  accepted([&] {
    if (kind == 'p') {
      read_pickle_file(put("meta.pkl", bytes));
    } else if (kind == 'P') {
      try_reader(*open_weights(put("model.pt", torch_archive(bytes))));
    } else if (kind == 'i') {
      put("shard.safetensors", safetensors(kShardHeader, std::string(8, '\0')));
      try_reader(SafetensorsReader(put("model.safetensors.index.json", bytes)));
    } else {
      try_reader(*open_weights(put("model.bin", bytes)));
    }
  });
}

}  // namespace choir::fuzz
