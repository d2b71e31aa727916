#pragma once
// The parts that exports to the formats of other programs have in common: the request, the report,
// and tensors of a checkpoint in slabs, so that every rank reads rows of a tensor and writes them
// into the file that all ranks write together.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/dtype.hpp"
#include "choir/core/tensor.hpp"
#include "src/store/open.hpp"

namespace choir {

struct ExportRequest {
  std::string format;        ///< hf | gguf | nanogpt | llmc | peft | nemo
  std::string out;           ///< a folder for hf, nanogpt and peft, else a file; must not exist
  bool merge = false;        ///< add adapters to the weights that they belong to
  std::string type = "f32";  ///< f64 | f32 | f16 | bf16 | q8_0 | q4_k
  std::int64_t shard_bytes = 5'000'000'000;
  std::string name;              ///< of the model, in GGUF
  std::string tokenizer_folder;  ///< tokenizer folder of the run, which may be missing
  std::string vocabulary;        ///< TrainMeta::vocabulary
};

struct ExportReport {
  std::vector<std::string> files;
  std::int64_t bytes = 0;  ///< of all tensors
  /// Biases that the model does not have but the other program requires; they are zeros.
  std::int64_t zero_tensors = 0;
  std::string type;  ///< under which the matrices are stored: ExportRequest::type, q5_0 or f32
  /// Lines for people: what the export has instead of what was asked for, and what it leaves out.
  std::vector<std::string> notes;
};

/// Throws DeckError if `out` exists; an empty folder may exist where a folder is written. Local.
void require_free_output(const std::string& out, bool is_folder);
/// Creates the folder of the export, or the one in which its file will be. Throws StorageError.
/// Local, by one rank.
void make_output_folder(const std::string& out, bool is_folder);

/// Rows of one of our tensors in memory.
struct RowSlab {
  std::int64_t first = 0, rows = 0;
  std::byte* data = nullptr;
  DType dtype = DType::f32;
};

/// A tensor of a checkpoint, and the type in which it is read.
struct SlabSource {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
};

/// Collective. Reads the tensor slab by slab and calls `use` with this rank's rows of each; rows
/// are zeros if the checkpoint has no such tensor. `use` is local, may change the rows, and may
/// throw.
void for_each_slab(const Checkpoint& checkpoint, Communicator& world, const SlabSource& tensor,
                   const std::function<void(const RowSlab&)>& use);

/// Throws a NumericError that names the tensor if a weight of the slab is not finite. Local.
void require_finite_slab(const Checkpoint& checkpoint, const SlabSource& tensor,
                         const RowSlab& slab);

}  // namespace choir
