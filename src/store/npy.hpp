#pragma once
// Reads and writes arrays in NumPy's format, for users who compare results in two lines of Python.
#include <string>
#include <vector>

#include "choir/core/tensor.hpp"

namespace choir {

/// Local. Writes float32, float64, uint16 or int32 in C order, first under a temporary name. Throws
/// StorageError.
void write_npy(const std::string& path, const TensorView& array);

/// An array read from a file. A double holds the numbers of every supported type exactly, except
/// for integers beyond 2^53.
struct NpyArray {
  Shape shape;
  std::vector<double> values;
  bool in_f32 = false;  ///< the file has float32
};

/// Local. Reads float32, float64, uint16, int32 or int64, little-endian, in C order, at most 2^30
/// elements. Throws StorageError for anything else, and if the size of the file does not match its
/// header.
NpyArray read_npy(const std::string& path);

}  // namespace choir
