#pragma once
// The members of a zip archive that are stored and not compressed, found by its central directory
// (what stands in front of the members themselves may be incomplete).
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/store/file_window.hpp"

namespace choir {

struct ZipMember {
  std::string name;
  std::int64_t header = 0;  ///< of the local header, in the archive
  std::int64_t bytes = 0;
  std::int64_t data = 0;  ///< where its bytes begin
};

class ZipDirectory {
 public:
  /// StorageError that names the archive and the lie: compressed or encrypted members, several of
  /// one name, members that overlap or reach beyond the archive.
  explicit ZipDirectory(const FileWindow& archive);

  /// In the order of the directory.
  const std::vector<ZipMember>& members() const { return members_; }
  /// nullptr when there is none.
  const ZipMember* find(std::string_view name) const;

 private:
  std::vector<ZipMember> members_;
};

}  // namespace choir
