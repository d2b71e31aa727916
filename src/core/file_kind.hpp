#pragma once
// The kind of a file, determined by its first bytes because many formats share a name: ".bin" may
// be tokens of nanoGPT, Megatron or llm.c, weights of llm.c, or a torch checkpoint.
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace choir {

enum class FileKind : std::uint8_t {
  unknown,  ///< also plain tokens, which have no header
  safetensors,
  gguf,
  zip,           ///< written by torch.save
  torch_legacy,  ///< written by torch.save before version 1.6
  tar,           ///< a .nemo
  gzip,
  hdf5,
  npy,
  megatron_index,
  llmc_model,
  llmc_llama_model,
  llmc_tokens_u16,  ///< vocabulary of GPT-2
  llmc_tokens_u32,  ///< vocabulary of Llama 3
  llmc_evaluation,
  llmc_state,
  llmc_tokenizer,
  llmc_debug_state,
  git_lfs,  ///< a text of three lines in place of a large file
  html
};

/// The first bytes that decide; a shorter file is passed whole.
inline constexpr std::size_t kFileKindBytes = 512;

FileKind file_kind(std::string_view first_bytes);

/// For messages: "a file of tokens of llm.c (GPT-2, 16 bits)".
std::string_view describe(FileKind kind);

}  // namespace choir
