#pragma once
// Mapping of a GPT's tensors to those of other programs: a table of names for each dialect, the
// parts of tensors that follow from it for a model (pure), and reading and writing of such parts
// (local).

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/nn/parameter_set.hpp"
#include "src/models/gpt/gpt_config.hpp"
#include "src/run/exported_model.hpp"
#include "src/run/imported_run.hpp"
#include "src/store/finite.hpp"
#include "src/store/tensor_file.hpp"

namespace choir {

/// Names and layout of the weights in another program.
enum class Dialect : std::uint8_t {
  hf_gpt2,     ///< transformers' GPT-2, whose linear weights are [in, out]
  hf_llama,    ///< transformers' Llama, Mistral, Qwen, SmolLM3, Gemma 1 and Granite
  hf_post,     ///< transformers' Gemma 2 and 3 and OLMo 2 and 3, with norms behind the branches
  hf_phi3,     ///< transformers' Phi-3: q, k and v are one tensor, and so are gate and up
  hf_neox,     ///< transformers' GPT-NeoX: q, k and v are one tensor, in order of heads
  nanogpt,     ///< GPT-2's names, but weights are [out, in]
  llmc,        ///< llm.c's GPT-2: one tensor has all layers
  gguf_gpt2,   ///< llama.cpp's GPT-2 and GPT-NeoX
  gguf_llama,  ///< llama.cpp's Llama and Granite: rows of q and k are ordered in rotated pairs
  gguf_qwen,   ///< llama.cpp's Qwen2, Qwen3, Gemma and OLMo 2: the same names, rows in our order
  gguf_phi3,   ///< llama.cpp's Phi-3: q, k and v are one tensor, and so are gate and up
};

/// Rows of our tensor that are a tensor of the other program, or a part of one. A vector is a
/// column.
struct TensorPart {
  std::string own;
  std::int64_t first_row = 0, rows = 0, columns = 0;  ///< in our tensor
  std::string name;                                   ///< in the other program
  Shape shape;                                        ///< of the other program's whole tensor
  std::int64_t first = 0;   ///< first element in its tensor, if all layers are one tensor
  bool transposed = false;  ///< [columns, rows] in the other program
  /// Not 0: rows of a head, whose two halves alternate in the other program's tensor.
  std::int64_t interleaved = 0;
  /// Not 0: q, k and v of each head are adjacent in the other program's tensor, this many rows
  /// each.
  std::int64_t head_rows = 0;
  /// Added to our values in the other program's tensor, in f32 or f64: 1 for norms of Gemma, of
  /// which GGUF has the factors 1 + w.
  double added = 0;
  double factor = 1;  ///< multiplies our values, after that, in the other program's tensor
  /// True for the head of a tied model that is stored nevertheless; it has the values of another
  /// part.
  bool repeated = false;
};

/// The parameters as one rank would hold them, without memory.
ParameterSet described_parameters(const GptConfig& config);

/// The parts of all parameters except adapters, in the order of the model. The dialect must have
/// names for all parameters of the model.
std::vector<TensorPart> tensor_parts(const GptConfig& config, const ParameterSet& parameters,
                                     Dialect dialect);

/// True if files of the dialect also have the head of a tied model.
bool repeats_head(Dialect dialect);

/// The name of a file's tensor in the table: without the prefixes that some programs add, and with
/// those that others omit.
std::string name_in_table(std::string_view wrapped, Dialect dialect);

/// True for a tensor that is not a weight: a mask, a table of angles, optimizer state.
bool is_no_weight(std::string_view name_in_table, Dialect dialect);

/// Consecutive elements in the other program's tensor, which are `stride` apart in a slab of ours.
struct PartRun {
  std::int64_t there = 0, slab = 0, count = 0, stride = 1;
};
/// The runs of the part within rows [first, first + rows) of our tensor.
std::vector<PartRun> runs_of(const TensorPart& part, std::int64_t first, std::int64_t rows);

/// Elements of a row of our tensor; 1 for a vector.
std::int64_t columns_of(const Shape& shape);

/// Reads the rows of the part that are in the slab from the tensor `name`; `check` examines them.
/// Returns the number of elements read.
std::int64_t read_part(const TensorReader& from, const std::string& name, const TensorPart& part,
                       const RowSlab& to, FiniteCheck& check);
void write_part(TensorWriter& to, const TensorPart& part, const RowSlab& from);

}  // namespace choir
