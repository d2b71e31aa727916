#pragma once
// A place on the disk for a bench, which leaves nothing behind.
#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "choir/comm/agreement.hpp"
#include "choir/comm/communicator.hpp"
#include "choir/store/collectives.hpp"

namespace choir {

/// A directory of all ranks while this lives. Making it is collective; StorageError on every rank.
class ScratchDirectory {
 public:
  ScratchDirectory(Communicator& world, const std::string& folder) : world_(world) {
    path_ = fmt::format("{}/choir_bench_checkpoint_{}", folder, ::getpid());
    share_text(world, path_);
    together(world, [&] {
      if (world_.rank() != 0) return;
      std::error_code why;
      std::filesystem::create_directory(path_, why);
      if (why)
        throw StorageError(fmt::format("cannot make the directory {}: {}", path_, why.message()),
                           "name a folder that exists and may be written: --folder DIR");
    });
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    if (world_.rank() == 0) std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  Communicator& world_;
  std::string path_;
};

}  // namespace choir
