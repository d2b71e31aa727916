#pragma once
// A temporary folder on disk for a measurement. Its name is random, so that no files of others are
// opened, overwritten or removed.
#include <fmt/core.h>
#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "choir/comm/agreement.hpp"
#include "choir/comm/communicator.hpp"
#include "choir/comm/rehearsal.hpp"
#include "choir/store/collectives.hpp"

namespace choir {

/// A directory shared by all ranks for the lifetime of this object. The constructor is collective
/// and throws StorageError on every rank.
class ScratchDirectory {
 public:
  ScratchDirectory(Communicator& world, const std::string& folder, const std::string& prefix)
      : world_(world) {
    together(world, [&] {
      if (!makes()) return;
      std::string path = fmt::format("{}/{}_XXXXXX", folder, prefix);
      if (::mkdtemp(path.data()) == nullptr)
        throw StorageError(
            fmt::format("cannot make the directory {}: {}", path, std::strerror(errno)),
            "choose an existing, writable folder: --folder DIR");
      path_ = path;
    });
    if (rehearsal_of(world) == nullptr) share_text(world, path_);
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    if (makes()) std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  /// In a rehearsal the simulated rank is alone.
  bool makes() const { return world_.rank() == 0 || rehearsal_of(world_) != nullptr; }

  Communicator& world_;
  std::string path_;
};

}  // namespace choir
