#pragma once
// Weights of any format that is read, told apart by their first bytes.
#include <memory>
#include <string>

#include "choir/store/tensor_reader.hpp"

namespace choir {

/// Local. `path` is a file, the index of shards, or a folder with weights under one of the names
/// that Hugging Face uses. StorageError that says what the file is instead, or what the folder
/// lacks.
std::unique_ptr<TensorReader> open_weights(const std::string& path);

}  // namespace choir
