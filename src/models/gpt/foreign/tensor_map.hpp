#pragma once
// Which tensors of other programs those of a GPT are: a table of names for each dialect, and what
// follows from it for a model. Pure.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "choir/models/gpt/gpt_config.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {

/// A way to name and lay out the weights.
enum class Dialect : std::uint8_t {
  hf_gpt2,     ///< transformers' GPT-2, whose linear weights are [in, out]
  hf_llama,    ///< transformers' Llama, Mistral, Qwen and SmolLM3
  nanogpt,     ///< GPT-2's names, but weights are [out, in]
  llmc,        ///< llm.c's GPT-2: one tensor has all layers
  gguf_gpt2,   ///< llama.cpp's GPT-2
  gguf_llama,  ///< llama.cpp's Llama: the rows of q and k are in pairs that are rotated together
  gguf_qwen,   ///< llama.cpp's Qwen2 and Qwen3: the same names, rows as they are
};

/// Rows of a tensor of ours that are a tensor there, or a part of one. A vector is a column.
struct TensorPart {
  std::string own;
  std::int64_t first_row = 0, rows = 0, columns = 0;  ///< of ours
  std::string name;                                   ///< there
  Shape shape;                                        ///< there, of all of it
  std::int64_t first = 0;   ///< element there that it begins with, where all layers are one tensor
  bool transposed = false;  ///< [columns, rows] there
  /// Not 0: of every so many rows, those of a head, the two halves alternate there.
  std::int64_t interleaved = 0;
  /// The same values as those of another part: a tied head that is stored nevertheless.
  bool repeated = false;
};

/// The parameters as one rank would hold them; they have no memory.
ParameterSet described_parameters(const GptConfig& config);

/// The parts of all parameters but adapters, in the order of the model. The model must be one that
/// the dialect has names for.
std::vector<TensorPart> tensor_parts(const GptConfig& config, const ParameterSet& parameters,
                                     Dialect dialect);

/// Whether files of the dialect have the head of a tied model as well.
bool repeats_head(Dialect dialect);

/// What a tensor of a file is called in the table: without the prefixes that some programs put
/// before names, and with those that others leave out.
std::string name_in_table(std::string_view name, Dialect dialect);

/// A tensor that is no weight: a mask, a table of angles, what an optimizer keeps.
bool is_no_weight(std::string_view name_in_table, Dialect dialect);

/// Consecutive elements there, which lie `stride` apart in a slab of ours.
struct PartRun {
  std::int64_t there = 0, slab = 0, count = 0, stride = 1;
};
/// Which rows of a slab, [first, first + rows) of our tensor, belong to the part.
std::vector<PartRun> runs_of(const TensorPart& part, std::int64_t first, std::int64_t rows);

/// Elements of a row of ours: of a vector 1.
std::int64_t columns_of(const Shape& shape);

}  // namespace choir
