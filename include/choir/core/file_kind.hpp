#pragma once
// What a file is by its first bytes, whatever its name says. Many formats share names: ".bin" is
// tokens of nanoGPT, Megatron and llm.c, weights of llm.c, and a torch checkpoint.
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace choir {

enum class FileKind : std::uint8_t {
  unknown,  ///< also plain tokens, which have no header
  safetensors,
  gguf,
  zip,           ///< what torch.save writes
  torch_legacy,  ///< what it wrote before version 1.6
  tar,           ///< a .nemo
  gzip,
  hdf5,
  npy,
  megatron_index,
  llmc_model,
  llmc_llama_model,
  llmc_tokens_u16,  ///< GPT-2's vocabulary
  llmc_tokens_u32,  ///< Llama 3's
  llmc_evaluation,
  llmc_state,
  llmc_tokenizer,
  llmc_debug_state
};

/// This many first bytes decide, or all of a shorter file.
inline constexpr std::size_t kFileKindBytes = 512;

FileKind file_kind(std::string_view first_bytes);

/// For messages: "a file of tokens of llm.c (GPT-2, 16 bits)".
std::string_view describe(FileKind kind);

}  // namespace choir
