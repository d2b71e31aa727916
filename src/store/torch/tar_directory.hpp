#pragma once
// The files in a plain tar archive, by where their bytes lie: a member is then read in place.
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
  /// ustar, GNU and pax. StorageError that names the archive for links, devices, paths that leave
  /// it, two members of one name, and headers that lie; folders are passed over.
  explicit TarDirectory(const FileWindow& archive);

  const std::vector<TarMember>& members() const { return members_; }
  /// nullptr when there is none.
  const TarMember* find(std::string_view name) const;

 private:
  std::vector<TarMember> members_;
};

}  // namespace choir
