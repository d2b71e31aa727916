#include "src/store/write_probe.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "choir/core/philox.hpp"
#include "src/core/quantities.hpp"
#include "src/store/collectives.hpp"
#include "src/store/slab_io.hpp"
#include "src/store/write_probe.hpp"

namespace choir {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kChunk = 1 << 20;
constexpr int kMostWriters = 64;  // more files would load the file system without a better estimate

/// Random numbers, because a file system may compress zeros.
std::vector<std::uint32_t> noise() {
  const PhiloxKey key = philox_key(1, "checkpoint.probe");
  std::vector<std::uint32_t> words(kChunk / sizeof(std::uint32_t));
  for (std::size_t i = 0; i < words.size(); i += 4) {
    const PhiloxBlock block = philox(key, {static_cast<std::uint32_t>(i), 0, 0, 0});
    std::copy(block.begin(), block.end(), words.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return words;
}

}  // namespace

double probe_write_rate(Communicator& world, const std::string& folder, std::int64_t bytes) {
  std::error_code ignored;
  const fs::path at =
      fs::exists(folder, ignored) ? fs::path(folder) : fs::path(folder).parent_path();
  const int apart = (world.size() + kMostWriters - 1) / kMostWriters;
  const int writers = (world.size() + apart - 1) / apart;
  const std::vector<std::uint32_t> words = noise();
  std::optional<ScratchDirectory> scratch;
  try {
    scratch.emplace(world, at.string(), ".write_probe");
  } catch (const StorageError&) {
    return 0;
  }
  double seconds = 0;
  world.barrier();
  const std::string reason = attempt_together(world, [&] {
    if (world.rank() % apart != 0) return;
    const double start = now_seconds();
    File file(fmt::format("{}/{}", scratch->path(), world.rank()), File::Mode::create);
    for (std::int64_t done = 0; done < bytes; done += kChunk)
      file.write_at(words.data(), std::min(kChunk, bytes - done), done);
    file.sync();
    file.close();
    seconds = now_seconds() - start;
  });
  world.all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
  if (!reason.empty() || seconds <= 0) return 0;
  return static_cast<double>(bytes) * writers / seconds;
}

}  // namespace choir
