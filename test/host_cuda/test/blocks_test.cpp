// Tests of the host execution of kernels: correct results, and the defects that it must name.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cuda/collective.cuh"
#include "kernels/cuda/ptx.cuh"
#include "src/device/cuda.hpp"

namespace choir::cuda {
namespace {

/// Runs body() as `threads` threads of one block, at once and on memory of the test.
template <class Body>
void run(unsigned threads, const Body& body, unsigned blocks = 1, std::size_t shared = 0) {
  host_cuda::run({"test kernel", {blocks, 1, 1}, {threads, 1, 1}, shared}, body);
}

class Seeded : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { host_cuda::set_seed(static_cast<std::uint64_t>(GetParam())); }
  void TearDown() override { host_cuda::set_seed(0); }
};
INSTANTIATE_TEST_SUITE_P(HostCuda, Seeded, ::testing::Values(0, 1, 2, 3));

TEST_P(Seeded, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> runs(5 * 70);
  run(
      70, [&] { ++runs[blockIdx.x * blockDim.x + threadIdx.x]; }, 5);
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST_P(Seeded, BarriersOrderAWholeBlock) {
  constexpr unsigned kThreads = 96;
  std::vector<int> sums(kThreads);
  run(kThreads, [&] {
    CHOIR_SHARED_ARRAY(int, values, kThreads);
    for (int round = 0; round < 3; ++round) {
      values[threadIdx.x] = static_cast<int>(threadIdx.x) + round;
      __syncthreads();
      int sum = 0;
      for (unsigned i = 0; i < kThreads; ++i) sum += values[i];
      __syncthreads();
      sums[threadIdx.x] += sum;
    }
  });
  const int expected = 3 * (95 * 96 / 2) + 96 * 3;
  EXPECT_EQ(sums, std::vector<int>(kThreads, expected));
}

// A block of sm_86 and sm_89 has 99 KB, including the arrays of its kernel.
TEST(SharedMemory, MoreThanTheSmallestGpuHasIsADefect) {
  const auto kernel = [] {
    CHOIR_SHARED_ARRAY(float, values, 256);
    values[threadIdx.x] = 1;
  };
  run(32, kernel, 1, 98 * 1024);
  EXPECT_DEATH(run(32, kernel, 1, 98 * 1024 + 16), "shared memory");
  EXPECT_DEATH(run(
                   32, [] {}, 1, 99 * 1024 + 16),
               "shared memory");
}

TEST_P(Seeded, ThreadsThatHaveLeftDoNotHoldABarrierUp) {
  int arrived = 0;
  run(64, [&] {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    ++arrived;
  });
  EXPECT_EQ(arrived, 40);
}

TEST_P(Seeded, ShufflesFollowTheirDefinition) {
  std::vector<int> up(32), down(32), across(32), first(32), same(32);
  run(32, [&] {
    const int lane = static_cast<int>(threadIdx.x);
    up[threadIdx.x] = __shfl_up_sync(kAllLanes, lane, 3);
    down[threadIdx.x] = __shfl_down_sync(kAllLanes, lane, 5, 16);
    across[threadIdx.x] = __shfl_xor_sync(kAllLanes, lane, 9);
    first[threadIdx.x] = __shfl_sync(kAllLanes, lane, 2, 8);
    same[threadIdx.x] = static_cast<int>(__match_any_sync(kAllLanes, threadIdx.x % 2));
  });
  for (int l = 0; l < 32; ++l) {
    const auto i = static_cast<std::size_t>(l);
    EXPECT_EQ(up[i], l >= 3 ? l - 3 : l);
    EXPECT_EQ(down[i], l % 16 + 5 < 16 ? l + 5 : l);
    EXPECT_EQ(across[i], l ^ 9);
    EXPECT_EQ(first[i], l / 8 * 8 + 2);
    EXPECT_EQ(static_cast<unsigned>(same[i]), l % 2 ? 0xaaaaaaaau : 0x55555555u);
  }
}

// Two halves of a warp take different branches and use different masks at once.
TEST_P(Seeded, DivergedHalvesDoNotMeet) {
  std::vector<unsigned> votes(32);
  run(32, [&] {
    const unsigned half = threadIdx.x / 16, mask = half ? 0xffff0000u : 0x0000ffffu;
    for (unsigned i = 0; i <= half; ++i)
      votes[threadIdx.x] = __ballot_sync(mask, threadIdx.x % (2 + half) == 0);
    __syncwarp();
  });
  for (unsigned l = 0; l < 32; ++l) {
    unsigned expected = 0;
    for (unsigned i = l / 16 * 16; i < l / 16 * 16 + 16; ++i)
      if (i % (2 + l / 16) == 0) expected |= 1u << i;
    EXPECT_EQ(votes[l], expected) << l;
  }
}

TEST_P(Seeded, BlockReductionsAgreeWithTheirSum) {
  constexpr int kThreads = 128;
  std::vector<double> sums(kThreads), greatest(kThreads);
  run(kThreads, [&] {
    CHOIR_SHARED_ARRAY(double, scratch, kThreads / kWarp);
    const double mine = static_cast<double>(threadIdx.x);
    sums[threadIdx.x] = block_reduce<Sum, kThreads>(mine, scratch);
    greatest[threadIdx.x] = block_reduce<Max, kThreads>(-mine, scratch);
  });
  EXPECT_EQ(sums, std::vector<double>(kThreads, 127.0 * 128 / 2));
  EXPECT_EQ(greatest, std::vector<double>(kThreads, 0.0));
}

TEST(HostCuda, SharedMemoryStartsPoisonedInEveryBlock) {
  std::vector<float> seen(6);
  run(
      1,
      [&] {
        CHOIR_SHARED_ARRAY(float, array, 1);
        seen[2 * blockIdx.x] = array[0];
        seen[2 * blockIdx.x + 1] = dynamic_shared<float>()[0];
        array[0] = dynamic_shared<float>()[0] = 1;
      },
      3, sizeof(float));
  for (const float x : seen) EXPECT_TRUE(std::isnan(x)) << x;
}

/// Copies 16 bytes by cp.async; `wait`: 0 none, 1 for the wrong group, 2 for the right one.
std::vector<float> copied(int wait) {
  std::vector<float> result(4);
  alignas(16) const float source[4] = {1, 2, 3, 4};
  run(
      1,
      [&] {
        auto* shared = dynamic_shared<float>();
        ptx::cp_async_16(shared, source, 12);
        ptx::cp_async_commit();
        if (wait == 1) ptx::cp_async_wait<1>();
        if (wait == 2) ptx::cp_async_wait<0>();
        for (int i = 0; i < 4; ++i) result[static_cast<std::size_t>(i)] = shared[i];
        ptx::cp_async_wait<0>();
      },
      1, 16);
  return result;
}

TEST(HostCuda, CopiesArriveWhenWaitedFor) {
  EXPECT_EQ(copied(2), (std::vector<float>{1, 2, 3, 0}));
  for (const int too_early : {0, 1})
    for (const float x : copied(too_early)) EXPECT_TRUE(std::isnan(x)) << x;
}

TEST(HostCudaDeathTest, ACopyNobodyWaitsForIsADefect) {
  alignas(16) static const float source[4] = {};
  EXPECT_EXIT(run(
                  1, [] { ptx::cp_async_16(dynamic_shared<float>(), source); }, 1, 16),
              ::testing::ExitedWithCode(70), "test kernel ends with cp.async copies");
}

TEST(HostCudaDeathTest, ADivergentBarrierIsNamed) {
  EXPECT_EXIT(run(64,
                  [] {
                    if (threadIdx.x < 32) __syncthreads();
                    if (threadIdx.x >= 32) __shfl_sync(kAllLanes >> 1, 1, 0);
                  }),
              ::testing::ExitedWithCode(70), "does not name it");
  EXPECT_EXIT(run(64,
                  [] {
                    if (threadIdx.x == 5) __syncwarp(0x60u);
                    __syncthreads();
                  }),
              ::testing::ExitedWithCode(70),
              "DEADLOCK in test kernel, block .0, 0, 0.(.|\n)*thread 5 waits in __syncwarp");
}

TEST(HostCudaDeathTest, ImpossibleLaunchesAreRefused) {
  EXPECT_EXIT(run(1025, [] {}), ::testing::ExitedWithCode(70), "1025 threads");
  EXPECT_EXIT(run(
                  32, [] {}, 1, 228 * 1024),
              ::testing::ExitedWithCode(70), "shared memory");
}

TEST_P(Seeded, MatrixFragmentsMultiply) {
  constexpr int kM = 16, kN = 8, kK = 16;
  alignas(16) static bf16 a[kM][kK], b_columns[kN][kK], b_rows[kK][kN];
  for (int m = 0; m < kM; ++m)
    for (int k = 0; k < kK; ++k) a[m][k] = bf16(static_cast<float>((m * 5 + k * 3) % 11 - 5));
  for (int n = 0; n < kN; ++n)
    for (int k = 0; k < kK; ++k)
      b_rows[k][n] = b_columns[n][k] = bf16(static_cast<float>((n * 7 + k * 2) % 13 - 6));
  static float product[2][kM][kN];
  run(32, [] {
    const unsigned lane = threadIdx.x, g = lane / 4, t = lane % 4;
    std::uint32_t fragment[4], column[4], row[4];
    // Matrices in the order of the fragment: rows 0-7 and 8-15 of columns 0-7, then of 8-15.
    ptx::ldmatrix_x4(fragment, &a[lane % 16][lane / 16 * 8]);
    ptx::ldmatrix_x4(column, &b_columns[lane % 8][lane / 8 % 2 * 8]);
    ptx::ldmatrix_x4_trans(row, &b_rows[lane % 16][0]);
    for (int way = 0; way < 2; ++way) {
      const std::uint32_t b[2] = {(way ? row : column)[0], (way ? row : column)[1]};
      float d[4] = {};
      ptx::mma_16x8x16<bf16>(d, fragment, b);
      for (unsigned i = 0; i < 4; ++i) product[way][g + i / 2 * 8][2 * t + i % 2] = d[i];
    }
  });
  for (int m = 0; m < kM; ++m)
    for (int n = 0; n < kN; ++n) {
      float expected = 0;  // small integers: exact
      for (int k = 0; k < kK; ++k)
        expected += static_cast<float>(a[m][k]) * static_cast<float>(b_columns[n][k]);
      EXPECT_EQ(product[0][m][n], expected) << m << ' ' << n;
      EXPECT_EQ(product[1][m][n], expected) << m << ' ' << n;
    }
}

}  // namespace
}  // namespace choir::cuda
