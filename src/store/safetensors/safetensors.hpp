#pragma once
// Safetensors: u64 N, N bytes of JSON (name -> dtype, shape, [begin, end) in the data), the data.
// The tensors are in one file, or in several ("shards") with model.safetensors.index.json, which
// lists the shard of each tensor; open_weights() reads those.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/store/tensor_file.hpp"

namespace choir {

class SafetensorsReader final : public TensorReader {
 public:
  /// Local. Reads the header only. Throws StorageError if it is inconsistent: the tensors must tile
  /// the data exactly.
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader() override;

  /// "__metadata__" of the file.
  const std::map<std::string, std::string>& metadata() const;

 private:
  void read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                    std::byte* to) const override;
  struct State;
  std::unique_ptr<State> state_;
};

/// Local. The same tensors, but matrices that bitsandbytes quantised (NF4, also with quantised
/// scales, and int8 by rows) appear as the reals that they mean, in the type that the package gives
/// them, and their scales and descriptions do not appear. Throws StorageError for those of another
/// kind, and for descriptions that contradict the tensors.
std::unique_ptr<TensorReader> dequantised(std::unique_ptr<TensorReader> file);

struct SafetensorsOptions {
  /// A shard has at most this many bytes of data, unless one tensor has more.
  std::int64_t shard_bytes = 5'000'000'000;
  /// File name without ".safetensors"; adapters use "adapter_model".
  std::string stem = "model";
  /// Older versions of transformers refuse files without "format".
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

/// Fills shards in the order of the list. Within a shard the widest types come first, and names are
/// sorted by their bytes, as in the format's own library. Writes STEM.safetensors for one shard,
/// else STEM-00001-of-00002.safetensors and so on, with STEM.safetensors.index.json.
class SafetensorsWriter final : public TensorWriter {
 public:
  /// Local; touches no file.
  SafetensorsWriter(const std::string& folder, std::vector<TensorEntry> tensors,
                    SafetensorsOptions options = {});
  ~SafetensorsWriter() override;

  void lay_out() override;
  void sync() override;

 private:
  void write_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                     const std::byte* from) override;
  void rename_files() override;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
