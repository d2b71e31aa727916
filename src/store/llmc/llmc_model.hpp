#pragma once
// GPT-2 models of llm.c: 256 numbers of 32 bits, then 16 tensors, each of all layers at once.
// Weights are [out, in], and GELU is the one with tanh.
#include <cstdint>
#include <memory>
#include <string>

#include "src/store/tensor_file.hpp"

namespace choir {

struct LlmcConfig {
  std::int64_t block_size = 0, vocab_size = 0, layers = 0, heads = 0, width = 0;
  bool in_bf16 = false;  ///< version 5 of the format; else float, version 3
};

/// wte, wpe, ln1w, ln1b, qkvw [L, 3C, C], qkvb, attprojw, attprojb, ln2w, ln2b, fcw, fcb, fcprojw,
/// fcprojb, lnfw, lnfb. wte has the rows of the vocabulary; the rows that pad it to a multiple of
/// 128 exist only in the file.
class LlmcReader final : public TensorReader {
 public:
  /// Local. Throws StorageError for other magics and versions, for a header of impossible numbers,
  /// and if the size of the file does not match its header.
  explicit LlmcReader(const std::string& path);
  ~LlmcReader() override;

  const LlmcConfig& config() const;

 private:
  void read_encoded(std::size_t index, std::int64_t first, std::int64_t count,
                    std::byte* to) const override;
  struct State;
  std::unique_ptr<State> state_;
};

class LlmcWriter final : public TensorWriter {
 public:
  /// Local; touches nothing. The tensors follow from the configuration.
  LlmcWriter(const std::string& path, const LlmcConfig& config);
  ~LlmcWriter() override;

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
