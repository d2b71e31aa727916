#pragma once
// Files of torch.save: a zip archive of a pickle, which describes tensors as views of storages, and
// of the storages. They are read as data; nothing in the pickle is executed.
#include <memory>
#include <string>

#include "src/store/tensor_file.hpp"
#include "src/store/torch/pickle.hpp"

namespace choir {

class FileWindow;

class TorchCheckpoint final : public TensorReader {
 public:
  /// Local. The name of a tensor consists of the keys and indices that lead to it, joined by '/':
  /// "model/transformer.wte.weight" in nanoGPT's ckpt.pt, and the plain name in a state_dict.
  /// Throws StorageError for inconsistent archives and pickles, pickles that name code, tensors
  /// beyond their storages, formats before version 1.6 of torch, TorchScript, and big-endian files.
  explicit TorchCheckpoint(const std::string& path);
  explicit TorchCheckpoint(const FileWindow& archive);
  ~TorchCheckpoint() override;

  /// The whole saved value including everything that is not a tensor, such as nanoGPT's model_args.
  const PickleValue& root() const;

 private:
  void read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                    std::byte* to) const override;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
