#pragma once
// The uncompressed members of a zip archive, found by its central directory (the local headers may
// be incomplete).
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/store/file_window.hpp"

namespace choir {

struct ZipMember {
  std::string name;
  std::int64_t header = 0;  ///< position of the local header in the archive
  std::int64_t bytes = 0;
  std::int64_t data = 0;  ///< position of its bytes
};

class ZipDirectory {
 public:
  /// Throws a StorageError that names the archive and the fault: compressed or encrypted members,
  /// several of one name, members that overlap or reach beyond the archive.
  explicit ZipDirectory(const FileWindow& archive);

  /// In the order of the directory.
  const std::vector<ZipMember>& members() const { return members_; }
  /// nullptr if there is no such member.
  const ZipMember* find(std::string_view name) const;

 private:
  std::vector<ZipMember> members_;
};

}  // namespace choir
