#pragma once
// One array in NumPy's format, for users who compare in two lines of Python.
#include <string>
#include <vector>

#include "choir/core/tensor.hpp"

namespace choir {

/// Local. float32 or float64 in C order, under a temporary name first. StorageError.
void write_npy(const std::string& path, const TensorView& array);

/// An array that was read. Numbers of every type that is read are exact in a double, but for whole
/// ones beyond 2^53.
struct NpyArray {
  Shape shape;
  std::vector<double> values;
  bool in_f32 = false;  ///< the file has float32
};

/// Local. float32, float64, int32 or int64, little-endian, in C order, at most 2^30 elements.
/// StorageError for anything else, and when the file has not the bytes that its header says.
NpyArray read_npy(const std::string& path);

}  // namespace choir
