#pragma once
// The files in an uncompressed tar archive with their positions, so that members can be read in
// place.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/store/file_window.hpp"

namespace choir {

struct TarMember {
  std::string name;  ///< without "./" in front
  std::int64_t data = 0, bytes = 0;
};

class TarDirectory {
 public:
  /// Reads ustar, GNU and pax. Throws a StorageError that names the archive for links, devices,
  /// paths that leave it, two members of one name, and inconsistent headers; skips folders.
  explicit TarDirectory(const FileWindow& archive);

  const std::vector<TarMember>& members() const { return members_; }
  /// nullptr if there is no such member.
  const TarMember* find(std::string_view name) const;

 private:
  std::vector<TarMember> members_;
};

}  // namespace choir
