#pragma once
// Opens weights of any supported format, recognised by the first bytes.
#include <memory>
#include <string>

#include "choir/store/tensor_reader.hpp"

namespace choir {

/// Local. `path` is a file, the index of shards, or a folder with weights under one of the names
/// that Hugging Face uses. Throws a StorageError that names the actual kind of the file, or what
/// the folder lacks.
std::unique_ptr<TensorReader> open_weights(const std::string& path);

}  // namespace choir
