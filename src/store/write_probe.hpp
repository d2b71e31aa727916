#pragma once
// Measures the current write rate of the file system of checkpoints with all ranks writing at once;
// and the temporary folder of such measurements, whose random name keeps files of others from being
// opened, overwritten or removed.

#include <fmt/core.h>
#include <stdlib.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>

#include "choir/comm/communicator.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/null_communicator.hpp"
#include "src/store/collectives.hpp"

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

/// Collective. Every rank writes `bytes` into a file of its own, in a folder with a random name
/// inside `folder` (beside it if it does not exist yet), syncs it to disk and removes it. Returns
/// bytes per second of all ranks together, by the time of the slowest; 0 if a rank failed: a later
/// save reports the reason.
double probe_write_rate(Communicator& world, const std::string& folder, std::int64_t bytes);

}  // namespace choir
