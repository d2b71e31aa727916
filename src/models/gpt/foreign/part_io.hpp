#pragma once
// Reading and writing of rows of our tensors in files of other programs. All functions are local.
#include <cstdint>
#include <functional>
#include <string>

#include "choir/store/finite.hpp"
#include "choir/store/tensor_reader.hpp"
#include "choir/store/tensor_writer.hpp"
#include "choir/train/step/imported_run.hpp"
#include "src/models/gpt/foreign/tensor_map.hpp"

namespace choir {

/// Rows of one of our tensors in memory.
struct RowSlab {
  std::int64_t first = 0, rows = 0;
  std::byte* data = nullptr;
  DType dtype = DType::f32;
};

/// Reads the rows of the part that are in the slab from the tensor `name`; `check` examines them.
/// Returns the number of elements read.
std::int64_t read_part(const TensorReader& from, const std::string& name, const TensorPart& part,
                       const RowSlab& to, FiniteCheck& check);
void write_part(TensorWriter& to, const TensorPart& part, const RowSlab& from);

}  // namespace choir
