// Memory of ranks at ZeRO stage 3, measured while they train: memory taken from the device, and
// resident memory of the processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "test/support/exhaustive.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

constexpr std::int64_t kWidth = 512, kLayers = 12, kVocabulary = 19, kTokens = 8;

GptConfig model() {
  GptConfig c = test::tiny_gpt();
  c.n_layer = kLayers;
  c.n_embd = kWidth;
  c.ffn_width = 4 * kWidth;
  return c;
}

/// Parameters of one block by hand: products with bias (q, k, v, output; 4 C wide there and back),
/// two norms.
constexpr double kBlock = 12.0 * kWidth * kWidth + 9.0 * kWidth + 4.0 * kWidth;
/// Embeddings (the head is tied) and the last norm.
constexpr double kEnds = static_cast<double>((kVocabulary + kTokens + 2) * kWidth);
constexpr double kParameters = kLayers * kBlock + kEnds;
/// fp32: masters, gradients and two moments.
constexpr double kStateBytes = 16 * kParameters;
/// Values and gradients that are whole for a while: two blocks of each (prefetch depth 1), and both
/// ends.
constexpr double kLiveBytes = 2 * 4 * (2 * kBlock + kEnds);

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kBooksOfASanitizer =
    true;  // are resident, too: a byte for eight, or several for one
#else
constexpr bool kBooksOfASanitizer = false;
#endif

class CountingDevice final : public CpuDevice {
 public:
  void* allocate(std::size_t bytes) override {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    return CpuDevice::allocate(bytes);
  }
  void release(void* address, std::size_t bytes) noexcept override {
    live_ -= bytes;
    CpuDevice::release(address, bytes);
  }
  double peak() const { return static_cast<double>(peak_); }

 private:
  std::size_t live_ = 0, peak_ = 0;
};

/// Resident bytes of the ranks of this node: a page that n processes share counts 1/n in each.
double resident_of_all(Mesh& mesh) {
  mesh.world().barrier();
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  double bytes = 0;
  while (file >> word)
    if (word == "Pss:" && file >> bytes) break;
  bytes *= 1024;
  mesh.world().all_reduce(&bytes, 1, DType::f64, ReduceOp::sum);
  return bytes;
}

EngineOptions sharded(int stage) {
  EngineOptions options = test::engine_options(model(), "fp32", 2);
  options.micro_batch_size = 1;
  options.zero.stage = stage;
  return options;
}

struct Held {
  double device = 0;    ///< peak of this rank, without activations
  double resident = 0;  ///< mean of that over all ranks
};

Held held_in_training(Mesh& mesh, const EngineOptions& options) {
  const double before = resident_of_all(mesh);
  auto device = std::make_unique<CountingDevice>();
  const CountingDevice& counted = *device;
  test::EngineRun run(options, mesh, std::move(device));
  for (int i = 0; i < 3; ++i) run.step();
  const auto activations = static_cast<double>(run.plan().arena_bytes);
  const double after = resident_of_all(mesh);
  return {.device = counted.peak() - activations,
          .resident = (after - before) / mesh.world().size() - activations};
}

TEST(ZeroMemory, StageThreeHoldsItsShareAndTheLiveBuckets) {
  const int ranks = test::world_size();
  if (ranks != 2 && ranks != 4 && !test::exhaustive()) GTEST_SKIP() << "needs 2 or 4 ranks";
  const auto mesh = Mesh::over_world(Layout(1, 1, ranks, 1), Transport::automatic);
  held_in_training(*mesh, sharded(3));  // libraries and MPI also keep memory
  const Held held = held_in_training(*mesh, sharded(3));
  const double share = kStateBytes / ranks;
  // Live buckets are in memory of the communicator, or of the device if there is one rank.
  const double own = ranks > 1 ? 0 : kLiveBytes;
  EXPECT_ALL_RANKS(held.device >= share) << held.device << " of " << share;
  EXPECT_ALL_RANKS(held.device <= 1.05 * share + own) << held.device << " of " << share;
  EXPECT_ALL_RANKS(held.resident >= share) << held.resident << " of " << share;
  EXPECT_ALL_RANKS(kBooksOfASanitizer || held.resident <= 1.05 * share + kLiveBytes)
      << held.resident << " of " << share << " + " << kLiveBytes;
}

// The measurement must detect that lower stages keep whole tensors.
TEST(ZeroMemory, StageTwoDoesNotPass) {
  const int ranks = test::world_size();
  if (ranks == 1) GTEST_SKIP() << "needs 2 or more ranks";
  if (ranks != 2 && !test::exhaustive()) GTEST_SKIP() << "needs 2 ranks";
  const auto mesh = Mesh::over_world(Layout(1, 1, ranks, 1), Transport::automatic);
  held_in_training(*mesh, sharded(2));
  const Held held = held_in_training(*mesh, sharded(2));
  EXPECT_ALL_RANKS(held.resident > 1.05 * kStateBytes / ranks + kLiveBytes) << held.resident;
}

}  // namespace
}  // namespace choir
