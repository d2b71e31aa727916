#pragma once
// manifest.json: the list that makes a directory a checkpoint. It is written last, carries its own
// checksum, and says of every byte of state.h5 what it should be. It alone says where what is read
// lies; all of it is checked against the size of the file, since anybody can compute checksums.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/dtype.hpp"
#include "choir/core/tensor.hpp"
#include "choir/store/branch.hpp"

namespace choir {

inline constexpr int kCheckpointFormat = 1;
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kStateName = "state.h5";

/// Where one tensor lies in state.h5: contiguous, row-major, little-endian.
struct TensorRecord {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::int64_t offset = 0;   ///< bytes from the start of the file
  std::uint32_t crc32c = 0;  ///< of its bytes

  std::int64_t bytes() const { return shape.count() * static_cast<std::int64_t>(size_of(dtype)); }
};

/// The text CheckpointMeta::json in state.h5.
struct TextRecord {
  std::int64_t offset = 0, bytes = 0;
  std::uint32_t crc32c = 0;
};
/// Its most bytes: a deck, a vocabulary and the position in the data are a few MB.
inline constexpr std::int64_t kMostTextBytes = std::int64_t{1} << 28;

struct Manifest {
  std::int64_t step = 0;
  std::string saved_at;  ///< local time
  std::string deck_hash;
  std::string layout;
  std::optional<double> metric;
  Branch branch;                       ///< older manifests have none
  std::int64_t state_bytes = 0;        ///< size of state.h5
  std::uint32_t state_crc32c = 0;      ///< of all of it
  std::uint32_t structure_crc32c = 0;  ///< of HDF5's own bytes in it, the tensors left out
  std::optional<TextRecord> meta;      ///< older programs wrote none
  std::vector<TensorRecord> tensors;

  std::string to_text() const;
  /// Throws StorageError saying what is wrong: not JSON, checksum, format version, a missing key, a
  /// tensor or text outside the file or on top of another, two tensors of one name.
  static Manifest parse(std::string_view text);

  /// nullptr when there is none of that name.
  const TensorRecord* find(std::string_view name) const;
};

/// A run of bytes of state.h5: a tensor, or what HDF5 itself keeps between them.
struct FileRegion {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  int tensor = -1;  ///< index into Manifest::tensors; -1 is HDF5's own
};

/// The whole file as regions in ascending order, without holes. Tensors of no bytes have none.
/// Throws StorageError when two tensors overlap.
std::vector<FileRegion> regions_of(const std::vector<TensorRecord>& tensors,
                                   std::int64_t file_bytes);

/// CRC of the file, or only of HDF5's own bytes in it, from those of the regions.
std::uint32_t crc_of_file(const std::vector<FileRegion>& regions,
                          const std::vector<std::uint32_t>& crcs);
std::uint32_t crc_of_structure(const std::vector<FileRegion>& regions,
                               const std::vector<std::uint32_t>& crcs);

}  // namespace choir
