#pragma once
// NeMo's .nemo files: a tar archive, optionally compressed by gzip, of model_config.yaml, the
// weights as written by torch.save, and files that the configuration names ("nemo:NAME").
#include <memory>
#include <string>
#include <vector>

#include "src/store/torch/torch_checkpoint.hpp"

namespace choir {

class NemoArchive {
 public:
  /// Local. A plain archive is read in place; a compressed one is unpacked into a file without a
  /// name in the system's folder for temporary files. StorageError for links, paths that leave the
  /// archive, archives without weights, and folders of NeMo 2.
  explicit NemoArchive(const std::string& path);
  ~NemoArchive();
  NemoArchive(const NemoArchive&) = delete;
  NemoArchive& operator=(const NemoArchive&) = delete;

  /// The result may outlive the archive object.
  std::unique_ptr<TorchCheckpoint> open_weights() const;
  /// Names of the files, without "./" in front.
  std::vector<std::string> members() const;
  /// A member of at most 64 MiB: model_config.yaml or a tokenizer. Throws StorageError if it does
  /// not exist.
  std::string read_member(const std::string& name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
