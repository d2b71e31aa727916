// Fuzzes files of weights. The first letter selects how they are opened: 'w': by their first bytes;
// 'i': an index beside a shard; 's': the first of two parts of a GGUF; 'p': a bare pickle; 'P': the
// pickle of an otherwise valid torch archive.
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

/// One tensor w of a block.
std::string gguf(std::uint32_t type, std::uint64_t elements, const std::string& block) {
  std::string bytes = "GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"s +
                      "\x01\0\0\0\0\0\0\0k\x09\0\0\0\x08\0\0\0\x01\0\0\0\0\0\0\0"s +
                      "\x02\0\0\0\0\0\0\0ab\x01\0\0\0\0\0\0\0w\x01\0\0\0"s + bytes_of(elements) +
                      bytes_of(type) + "\0\0\0\0\0\0\0\0"s;
  bytes.resize((bytes.size() + 31) / 32 * 32, '\0');
  return bytes + block;
}

/// Part 1 or 2 of a GGUF, with one tensor of two numbers.
std::string gguf_part(std::uint16_t number) {
  const auto text = [](const std::string& s) {
    return bytes_of(static_cast<std::uint64_t>(s.size())) + s;
  };
  const std::string u16 = bytes_of(std::uint32_t{2});
  std::string bytes = "GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0"s + text("split.no") +
                      u16 + bytes_of(static_cast<std::uint16_t>(number - 1)) + text("split.count") +
                      u16 + bytes_of(std::uint16_t{2}) + text("split.tensors.count") +
                      bytes_of(std::uint32_t{5}) + bytes_of(std::int32_t{2}) +
                      text(number == 1 ? "a" : "b") + "\x01\0\0\0\x02\0\0\0\0\0\0\0"s +
                      std::string(12, '\0');
  bytes.resize((bytes.size() + 31) / 32 * 32, '\0');
  return bytes + std::string(8, '\1');
}

/// NF4 of bitsandbytes: four elements in two blocks.
std::string four_bits() {
  const std::string state = R"({"quant_type":"nf4","blocksize":2,"dtype":"float32","shape":[4]})";
  const std::string end = std::to_string(74 + state.size());
  return safetensors(R"({"w.quant_map":{"dtype":"F32","shape":[16],"data_offsets":[0,64]},)"
                     R"("w.absmax":{"dtype":"F32","shape":[2],"data_offsets":[64,72]},)"
                     R"("w":{"dtype":"U8","shape":[2,1],"data_offsets":[72,74]},)"
                     R"("w.quant_state.bitsandbytes__nf4":{"dtype":"U8","shape":[)" +
                         std::to_string(state.size()) + R"(],"data_offsets":[74,)" + end + "]}}",
                     std::string(74, '\1') + state);
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
          "w" + gguf(8, 32, "\0\x3c"s + std::string(32, '\x07')),
          "w" + gguf(12, 256, "\0\x3c\0\x38"s + std::string(140, '\x37')),
          "w" + gguf(14, 256, std::string(208, '\x5a') + "\0\x3c"s),
          "s" + gguf_part(1),
          "w" + four_bits(),
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
    } else if (kind == 's') {
      put("m-00002-of-00002.gguf", gguf_part(2));
      try_reader(*open_weights(put("m-00001-of-00002.gguf", bytes)));
    } else if (kind == 'i') {
      put("shard.safetensors", safetensors(kShardHeader, std::string(8, '\0')));
      try_reader(*open_weights(put("model.safetensors.index.json", bytes)));
    } else {
      try_reader(*open_weights(put("model.bin", bytes)));
    }
  });
}

}  // namespace choir::fuzz
