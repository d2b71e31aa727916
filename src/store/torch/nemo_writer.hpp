#pragma once
// Writes NeMo's .nemo files: a plain tar archive of model_config.yaml, of files that it names, and
// of model_weights.ckpt, a state_dict in the format of torch.save (a zip archive without
// compression).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/store/tensor_file.hpp"

namespace choir {

/// A file of the archive that is small enough to be in memory.
struct NemoMember {
  std::string name;  ///< without "./" in front, at most 90 bytes
  std::string bytes;
};

/// Storages of tensors begin at multiples of 64 bytes in the file, as those of torch.save do. All
/// numbers in the archives have 64 bits, so that nothing depends on the size of the file.
class NemoWriter final : public TensorWriter {
 public:
  /// Local; touches no file. Tensors are reals and integers of torch: f64, f32, f16, bf16, i64.
  NemoWriter(const std::string& path, const std::vector<NemoMember>& members,
             std::vector<TensorEntry> tensors);
  ~NemoWriter() override;

  void lay_out() override;
  void sync() override;

  /// The contributions of the elements that this rank wrote to the CRC-32 of each tensor. Before
  /// commit(), the rank that calls it replaces them by the exclusive or over all ranks.
  std::vector<std::uint32_t>& checksums();

 private:
  void write_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                     const std::byte* from) override;
  void rename_files() override;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
