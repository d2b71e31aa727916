#pragma once
// The JSON in front of a safetensors file.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/store/tensor_reader.hpp"
#include "src/store/file_window.hpp"

namespace choir {

struct SafetensorsRecord {
  TensorEntry entry;
  std::int64_t offset = 0;  ///< from the start of the file
};

struct SafetensorsHeader {
  std::vector<SafetensorsRecord> records;  ///< ordered by offset
  std::map<std::string, std::string> metadata;
};

/// Throws a StorageError that names the file and the fault.
SafetensorsHeader read_safetensors_header(const FileWindow& file);

/// The length, the JSON and its padding. Sets the offsets of the records, which must be in the
/// order of their bytes.
std::string lay_out_safetensors_header(std::vector<SafetensorsRecord>& records,
                                       const std::map<std::string, std::string>& metadata);

}  // namespace choir
