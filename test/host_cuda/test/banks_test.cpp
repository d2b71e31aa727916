// Tests that bank conflicts are counted correctly, and that no kernel that these tests run has more
// of them than test/host_cuda/bank_conflicts.txt allows.
#include "test/host_cuda/banks.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace choir::cuda {
namespace {

using host_cuda::BankUse;
using host_cuda::KernelBanks;

/// True for kernels of tests, which are not compared with the table.
bool of_a_test(const std::string& kernel) {
  return kernel.starts_with("test ");
}

/// Conflicts of 32 lanes that copy 16 bytes each to `place(lane)`, in chunks of 16 bytes, and read
/// the same chunks as rows of matrices.
template <class Place>
KernelBanks banks_of(const char* kernel, const Place& place) {
  alignas(16) static const float source[4] = {};
  host_cuda::bank_uses().erase(kernel);
  host_cuda::run({kernel, {1, 1, 1}, {32, 1, 1}, 32 * 1024}, [&] {
    void* const piece = dynamic_shared<uint4>() + place(threadIdx.x);
    ptx::cp_async_16(piece, source);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncwarp();
    std::uint32_t out[4];
    ptx::ldmatrix_x4(out, piece);
  });
  return host_cuda::bank_uses()[kernel];
}

TEST(Banks, PiecesSideBySideDoNotMeet) {
  const KernelBanks banks = banks_of("test side by side", [](unsigned lane) { return lane; });
  for (const BankUse& use : {banks.matrices, banks.copies}) {
    EXPECT_EQ(use.accesses, 4u);
    EXPECT_EQ(use.conflicts, 0u);
  }
}

// Rows of 128 bytes, one chunk of each: without a swizzle all eight use the same four banks.
TEST(Banks, AColumnMeetsUnlessItsPiecesChangePlaces) {
  const KernelBanks column = banks_of("test column", [](unsigned lane) { return 8 * lane; });
  const KernelBanks moved =
      banks_of("test moved", [](unsigned lane) { return 8 * lane + lane % 8; });
  for (const BankUse& use : {column.matrices, column.copies}) EXPECT_EQ(use.conflicts, 4u * 7);
  for (const BankUse& use : {moved.matrices, moved.copies}) EXPECT_EQ(use.conflicts, 0u);
}

TEST(Banks, EqualAddressesAreOneAccess) {
  EXPECT_EQ(banks_of("test equal", [](unsigned lane) { return lane / 8 * 8; }).matrices.conflicts,
            0u);
  // Pairs of rows 64 bytes apart: two chunks for each group of four banks.
  EXPECT_EQ(banks_of("test pairs", [](unsigned lane) { return 4 * lane; }).copies.conflicts,
            4u * 3);
}

/// Checks everything after all tests have run.
class BankTable final : public ::testing::Environment {
 public:
  void TearDown() override {
    std::ifstream file("test/host_cuda/bank_conflicts.txt");
    std::map<std::string, std::pair<double, double>> most;
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string kernel;
      if (line.starts_with('#') || !(words >> kernel)) continue;
      words >> most[kernel].first >> most[kernel].second;
    }
    EXPECT_FALSE(most.empty());
    for (const auto& [kernel, banks] : host_cuda::bank_uses()) {
      if (of_a_test(kernel)) continue;
      if (!most.contains(kernel)) ADD_FAILURE() << kernel << " is not in bank_conflicts.txt";
      EXPECT_LE(per_hundred(banks.matrices), most[kernel].first) << kernel << ", ldmatrix";
      EXPECT_LE(per_hundred(banks.copies), most[kernel].second) << kernel << ", cp.async";
    }
  }

 private:
  static double per_hundred(const BankUse& use) {
    return use.accesses == 0
               ? 0
               : 100 * static_cast<double>(use.conflicts) / static_cast<double>(use.accesses);
  }
};
[[maybe_unused]] const ::testing::Environment* const table =
    ::testing::AddGlobalTestEnvironment(new BankTable);

}  // namespace
}  // namespace choir::cuda
