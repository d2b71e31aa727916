// Tests of the emulated instructions of sm_90a: the layouts are compared with those that the PTX
// manual prints, and each defect must be named.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "kernels/attention/cuda/attention_hopper.cuh"
#include "src/device/cuda.hpp"

namespace choir::cuda {
namespace {

using host_cuda::hopper::element_address;
using host_cuda::hopper::encode;

template <class Body>
void run(unsigned threads, std::size_t shared, const Body& body) {
  const host_cuda::hopper::Allowed allowed;
  host_cuda::run({"test kernel", {1, 1, 1}, {threads, 1, 1}, shared}, body);
}

class HopperSeeded : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { host_cuda::set_seed(static_cast<std::uint64_t>(GetParam())); }
  void TearDown() override { host_cuda::set_seed(0); }
};
INSTANTIATE_TEST_SUITE_P(HostCuda, HopperSeeded, ::testing::Values(0, 1, 2));

// --- matrix descriptors ------------------------------------------------------------------------

TEST(HopperDescriptor, FieldsAreWhereTheManualPutsThem) {
  EXPECT_EQ(encode(0x12340, 256, 512, 3), 0xc000'0020'0010'1234ull);
  EXPECT_EQ(encode(0x7fff0, 0, 1024, 1, 5), 0x400a'0040'0000'3fffull) << "18 bits of an address";
}

/// Elements of two bytes in the canonical layout ((8, c, 2), (8, 2)) of figures 168 to 170, with
/// the strides printed there, behind Swizzle<log2 c, 4, 3>.
std::uint32_t printed(unsigned mn, unsigned k, unsigned c, unsigned repeat, unsigned row,
                      unsigned rows) {
  const unsigned element =
      mn % 8 + mn / 8 % c * 8 + mn / 8 / c * repeat + k % 8 * row + k / 8 * rows;
  const unsigned address = 2 * element, mask = c - 1;
  return address ^ (address / 128 & mask) * 16;
}

TEST(HopperDescriptor, ColumnsInRowsFollowTheManualsFigures) {
  const struct {
    unsigned chunks, leading, stride, mode, repeat, row, rows;
  } figures[] = {{1, 128, 64, 0, 64, 8, 128},        // 168: without a swizzle
                 {2, 128, 256, 3, 128, 16, 256},     // 169: 32 bytes
                 {4, 256, 512, 2, 256, 32, 512},     // 170: 64 bytes
                 {8, 512, 1024, 1, 512, 64, 1024}};  // and its row for 128 bytes
  for (const auto& f : figures) {
    const std::uint64_t d = encode(0, 2 * f.leading, 2 * f.stride, f.mode);
    for (unsigned mn = 0; mn < 16 * f.chunks; ++mn)
      for (unsigned k = 0; k < 16; ++k)
        ASSERT_EQ(element_address(d, false, mn, k),
                  printed(mn, k, f.chunks, f.repeat, f.row, f.rows))
            << f.chunks << ": " << mn << ' ' << k;
  }
}

// K-major, 128 bytes: ((8, m), (T, 2 k)) : ((8 T, SBO), (1, T)); columns from 16 on begin 32 bytes
// later.
TEST(HopperDescriptor, RowsOfASwizzledTileFollowTheirCanonicalLayout) {
  for (unsigned first = 0; first < 64; first += 16) {
    const std::uint64_t d = encode(4096 + 2 * first, 16, 1024, 1);
    for (unsigned row = 0; row < 64; ++row)
      for (unsigned k = 0; k < 16; ++k) {
        const unsigned chunk = (first + k) / 8 ^ row % 8;
        ASSERT_EQ(element_address(d, true, row, k), 4096 + row * 128 + chunk * 16 + k % 8 * 2);
      }
  }
}

TEST(HopperDescriptor, KernelsWriteTheSame) {
  run(1, 4096, [] {
    unsigned char* shared = ptx::swizzled_shared();
    EXPECT_EQ(host_cuda::hopper::shared_address(shared) % 1024, 0u);
    EXPECT_EQ(ptx::matrix_descriptor(shared + 2048, 16384),
              encode(host_cuda::hopper::shared_address(shared) + 2048, 16384, 1024, 1));
  });
}

// --- boxes and barriers ------------------------------------------------------------------------

/// A tensor [2, 10, 3, 128] whose elements encode their position.
struct Tensor {
  static constexpr std::int64_t kSamples = 2, kRows = 10, kHeads = 3, kWidth = 128;
  std::vector<std::uint16_t> data;
  Tensor() : data(static_cast<std::size_t>(kSamples * kRows * kHeads * kWidth)) {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint16_t>(i + 1);
  }
  CUtensorMap map(int rows) const {
    CUtensorMap map;
    set_tensor_map(map, {data.data(), DType::bf16, kSamples, kRows, kHeads, kWidth,
                         kRows * kHeads * kWidth, kHeads * kWidth, rows});
    return map;
  }
};

TEST_P(HopperSeeded, ABoxLandsSwizzledWithZerosAroundTheTensor) {
  const Tensor tensor;
  const CUtensorMap map = tensor.map(16);
  std::vector<std::uint16_t> early(16 * 64), seen(16 * 64);
  run(1, 4096, [&] {
    auto* tile = reinterpret_cast<std::uint16_t*>(ptx::swizzled_shared());
    auto* barrier = reinterpret_cast<ptx::Barrier*>(ptx::swizzled_shared() + 2048);
    ptx::barrier_init(barrier, 1);
    ptx::fence_async_proxy();
    ptx::barrier_wait(barrier, 1);  // the phase before the first
    ptx::barrier_arrive_expecting(barrier, 2048);
    ptx::load_box(tile, &map, 64, 1, 4, 1, barrier);
    for (std::size_t i = 0; i < early.size(); ++i) early[i] = tile[i];
    ptx::barrier_wait(barrier, 0);
    for (std::size_t i = 0; i < seen.size(); ++i) seen[i] = tile[i];
  });
  EXPECT_EQ(early, std::vector<std::uint16_t>(early.size(), 0xffff));
  for (std::int64_t row = 0; row < 16; ++row)
    for (std::int64_t column = 0; column < 64; ++column) {
      const std::int64_t at = ((1 * 10 + 4 + row) * 3 + 1) * 128 + 64 + column;
      const auto chunk = column / 8 ^ row % 8;
      ASSERT_EQ(seen[static_cast<std::size_t>(row * 64 + chunk * 8 + column % 8)],
                4 + row < 10 ? static_cast<std::uint16_t>(at + 1) : 0)
          << row << ' ' << column;
    }
}

// Two threads exchange a number, phase by phase.
TEST_P(HopperSeeded, PhasesAlternate) {
  std::vector<int> seen;
  run(2, 64, [&] {
    auto* barriers = reinterpret_cast<ptx::Barrier*>(ptx::swizzled_shared());
    auto* number = reinterpret_cast<int*>(barriers + 2);
    if (threadIdx.x == 0) ptx::barrier_init(&barriers[0], 1), ptx::barrier_init(&barriers[1], 1);
    __syncthreads();
    for (unsigned round = 0; round < 5; ++round)
      if (threadIdx.x == 0) {
        ptx::barrier_wait(&barriers[1], round % 2 ^ 1);
        *number = static_cast<int>(round);
        ptx::barrier_arrive(&barriers[0]);
      } else {
        ptx::barrier_wait(&barriers[0], round % 2);
        seen.push_back(*number);
        ptx::barrier_arrive(&barriers[1]);
      }
  });
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 3, 4}));
}

/// One thread with an initialised barrier behind a tile of 2048 bytes.
template <class Body>
void with_barrier(const Body& body, bool fenced = true) {
  run(1, 4096, [&] {
    auto* barrier = reinterpret_cast<ptx::Barrier*>(ptx::swizzled_shared() + 2048);
    ptx::barrier_init(barrier, 1);
    if (fenced) ptx::fence_async_proxy();
    body(ptx::swizzled_shared(), barrier);
  });
}

TEST(HopperDeathTest, DefectsOfBarriersAreNamed) {
  const auto defect = ::testing::ExitedWithCode(70);
  const Tensor tensor;
  const CUtensorMap map = tensor.map(16);
  EXPECT_EXIT(
      run(1, 64,
          [] { ptx::barrier_arrive(reinterpret_cast<ptx::Barrier*>(ptx::swizzled_shared())); }),
      defect, "nobody has initialised");
  EXPECT_EXIT(with_barrier([](auto*, ptx::Barrier* b) { ptx::barrier_wait(b, 0); }), defect,
              "DEADLOCK in test kernel(.|\n)*mbarrier.try_wait");
  EXPECT_EXIT(
      with_barrier([&](auto* tile, ptx::Barrier* b) { ptx::load_box(tile, &map, 0, 0, 0, 0, b); },
                   false),
      defect, "not fenced");
  EXPECT_EXIT(
      with_barrier([&](auto* tile, ptx::Barrier* b) { ptx::load_box(tile, &map, 0, 0, 0, 0, b); }),
      defect, "ends with boxes");
  EXPECT_EXIT(with_barrier([&](auto* tile, ptx::Barrier* b) {
                ptx::load_box(tile + 64, &map, 0, 0, 0, 0, b);
              }),
              defect, "a box of 2048 bytes for shared address");
  EXPECT_EXIT(with_barrier([&](auto* tile, ptx::Barrier* b) {
                ptx::barrier_arrive_expecting(b, 1024);  // half of the arriving bytes
                ptx::load_box(tile, &map, 0, 0, 0, 0, b);
                ptx::barrier_wait(b, 0);
              }),
              defect, "DEADLOCK");
}

TEST(Hopper, TensorMapsAreRefusedAsADriverRefusesThem) {
  const Tensor tensor;
  TensorBoxes boxes{tensor.data.data(), DType::bf16, 2, 10, 3, 128, 3840, 384, 16};
  CUtensorMap map;
  EXPECT_NO_THROW(set_tensor_map(map, boxes));
  TensorBoxes wrong = boxes;
  wrong.data = tensor.data.data() + 4;
  EXPECT_THROW(set_tensor_map(map, wrong), Error) << "an address that is no multiple of 16 bytes";
  wrong = boxes, wrong.row_stride = 388;
  EXPECT_THROW(set_tensor_map(map, wrong), Error) << "a stride that is none";
  wrong = boxes, wrong.box_rows = 257;
  EXPECT_THROW(set_tensor_map(map, wrong), Error);
}

// --- which calls of attention ------------------------------------------------------------------

TEST(Hopper, AttentionTakesTheCallsThatItSays) {
  const ops::AttentionProblem problem{.batch = 2, .heads = 4, .kv_heads = 4, .head_width = 64};
  AttentionArgs<bf16> args{};
  args.aligned = true;
  for (auto* x : {&args.q, &args.k, &args.v}) x->position_stride = 768, x->batch_stride = 7680;
  const auto takes = [](const ops::AttentionProblem& p, const AttentionArgs<bf16>& a) {
    const auto device = make_device(DeviceKind::cuda);
    return hopper_takes(Stream(*device), p, a);
  };
  EXPECT_TRUE(takes(problem, args));
  ops::AttentionProblem p = problem;
  for (const std::int64_t width : {32, 96, 120}) {
    p.head_width = width;
    EXPECT_FALSE(takes(p, args)) << width;
  }
  AttentionArgs<bf16> a = args;
  a.aligned = false;
  EXPECT_FALSE(takes(problem, a));
  const bf16 bias[1]{};
  a = args, a.bias = bias;
  EXPECT_FALSE(takes(problem, a));
  const std::int32_t lengths[1]{};
  a = args, a.lengths = lengths;
  EXPECT_FALSE(takes(problem, a));
  a = args, a.k.position_stride = 776;
  EXPECT_FALSE(takes(problem, a));
  a = args, a.v.batch_stride = 7688;
  EXPECT_FALSE(takes(problem, a));
  ::setenv("HOST_CUDA_CAPABILITY", "80", 1);
  EXPECT_FALSE(takes(problem, args));
  ::unsetenv("HOST_CUDA_CAPABILITY");
}

// --- products ----------------------------------------------------------------------------------

float value_of(unsigned i, unsigned j) {
  return static_cast<float>((i * 7 + j * 5) % 13) - 6;
}

template <class T>
void put(std::uint32_t address, float value) {
  T x(value);
  auto* at = const_cast<unsigned char*>(host_cuda::hopper::at_shared(address));
  std::memcpy(at, &x.bits, sizeof x.bits);
}

/// 1 + A B of a warp group, with A [64 x 16] in shared memory or registers, and B stored as rows of
/// k or not.
template <class T, bool kRowsOfB, int kN>
std::vector<float> product(bool a_shared, bool* nan_before = nullptr) {
  std::vector<float> result(64 * 8 * kN);
  run(128, 24576, [&] {
    unsigned char* shared = ptx::swizzled_shared();
    const std::uint64_t a = ptx::matrix_descriptor(shared, 0);
    const std::uint64_t b = ptx::matrix_descriptor(shared + 8192, kRowsOfB ? 2048 : 0);
    const unsigned t = threadIdx.x;
    if (t < 64)
      for (unsigned k = 0; k < 16; ++k) put<T>(element_address(a, true, t, k), value_of(t, k));
    if (!kRowsOfB || t < 16)  // each thread has one row of B as it is stored
      for (unsigned k = kRowsOfB ? t : 0; k < (kRowsOfB ? t + 1 : 16); ++k)
        for (unsigned n = kRowsOfB ? 0 : t; n < 8 * kN; n += kRowsOfB ? 1 : 128)
          put<T>(element_address(b, !kRowsOfB, n, k), value_of(n + 3, k));
    ptx::fence_async_proxy();
    __syncthreads();
    float sums[kN][4];
    for (auto& four : sums)
      for (float& x : four) x = 1;
    const unsigned row = t / 32 * 16 + t % 32 / 4, k = t % 4 * 2;
    std::uint32_t left[4];
    for (unsigned i = 0; i < 4; ++i)
      left[i] = ptx::pack<T>(value_of(row + i % 2 * 8, k + i / 2 * 8),
                             value_of(row + i % 2 * 8, k + 1 + i / 2 * 8));
    ptx::wgmma_fence(sums);
    if (a_shared)
      ptx::wgmma<T, kRowsOfB>(sums, a, b, true);
    else
      ptx::wgmma<T, kRowsOfB>(sums, left, b);
    ptx::wgmma_commit();
    if (nan_before) *nan_before = std::isnan(sums[0][0]) && std::isnan(sums[kN - 1][3]);
    ptx::wgmma_wait<0>(sums);
    for (unsigned n = 0; n < kN; ++n)
      for (unsigned i = 0; i < 4; ++i)
        result[(row + i / 2 * 8) * 8 * kN + 8 * n + t % 4 * 2 + i % 2] = sums[n][i];
  });
  return result;
}

template <int kN>
std::vector<float> expected_product() {
  std::vector<float> result;
  for (unsigned m = 0; m < 64; ++m)
    for (unsigned n = 0; n < 8 * kN; ++n) {
      float sum = 1;  // small integers: exact
      for (unsigned k = 0; k < 16; ++k) sum += value_of(m, k) * value_of(n + 3, k);
      result.push_back(sum);
    }
  return result;
}

TEST_P(HopperSeeded, WarpGroupsMultiply) {
  bool nan_before = false;
  for (const bool shared : {true, false}) {
    EXPECT_EQ((product<bf16, false, 8>(shared, &nan_before)), expected_product<8>());
    EXPECT_TRUE(nan_before) << "sums are not there before they are waited for";
    EXPECT_EQ((product<f16, true, 8>(shared)), expected_product<8>());
    EXPECT_EQ((product<bf16, true, 16>(shared)), expected_product<16>());
    EXPECT_EQ((product<f16, false, 16>(shared)), expected_product<16>());
  }
}

/// A product of zeros that violates a rule of the manual.
template <class Body>
void misused(const Body& body) {
  run(128, 16384, [&] {
    unsigned char* shared = ptx::swizzled_shared();
    for (unsigned i = threadIdx.x; i < 16384; i += 128) shared[i] = 0;
    __syncthreads();
    float sums[8][4] = {};
    body(sums, ptx::matrix_descriptor(shared, 0), shared);
  });
}

TEST(HopperDeathTest, DefectsOfProductsAreNamed) {
  using Sums = float[8][4];
  const auto defect = ::testing::ExitedWithCode(70);
  EXPECT_EXIT(misused([](Sums& sums, std::uint64_t m, auto*) {
                ptx::wgmma<bf16, false>(sums, m, m, true);
              }),
              defect, "since its last wgmma.fence");
  EXPECT_EXIT(misused([](Sums& sums, std::uint64_t m, auto*) {
                ptx::wgmma_fence(sums);
                ptx::wgmma<bf16, false>(sums, m, m, true);
              }),
              defect, "nobody waited for");
  EXPECT_EXIT(misused([](Sums& sums, std::uint64_t m, auto* shared) {
                ptx::wgmma_fence(sums);
                ptx::wgmma<bf16, false>(sums, m, m, true);
                ptx::wgmma_commit();
                __syncthreads();
                shared[threadIdx.x] = 1;
                ptx::wgmma_wait<0>(sums);
              }),
              defect, "was written while it was under way");
  EXPECT_EXIT(misused([](Sums& sums, std::uint64_t m, auto*) {
                ptx::wgmma_fence(sums);
                ptx::wgmma<bf16, false>(sums, m, m + threadIdx.x / 32, true);
                ptx::wgmma_commit();
                ptx::wgmma_wait<0>(sums);
              }),
              defect, "different products");
  EXPECT_EXIT(misused([](Sums& sums, std::uint64_t m, auto*) {
                ptx::wgmma_fence(sums);
                ptx::wgmma<bf16, false>(sums, m, m + 1000, true);
                ptx::wgmma_commit();
                ptx::wgmma_wait<0>(sums);
              }),
              defect, "reads shared address");
  EXPECT_EXIT(misused([](Sums& sums, std::uint64_t m, auto*) {
                ptx::wgmma_fence(sums);
                if (threadIdx.x < 64) ptx::wgmma<bf16, false>(sums, m, m, true);
                ptx::wgmma_commit();
                ptx::wgmma_wait<0>(sums);
              }),
              defect, "DEADLOCK in test kernel(.|\n)*wgmma.wait_group");
  EXPECT_EXIT(run(129, 16384, [] { ptx::named_barrier(0, 128); }), defect, "barrier 0");
}

// The newest group may be in flight; the sums of the older ones are complete.
TEST(Hopper, GroupsEndInTheirOrder) {
  misused([](float(&first)[8][4], std::uint64_t m, auto*) {
    float second[8][4] = {};
    ptx::wgmma_fence(first, second);
    ptx::wgmma<bf16, false>(first, m, m, true);
    ptx::wgmma_commit();
    ptx::wgmma<bf16, false>(second, m, m, true);
    ptx::wgmma<bf16, false>(second, m, m, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>(first);
    EXPECT_EQ(first[0][0], 0);
    EXPECT_TRUE(std::isnan(second[0][0]));
    ptx::wgmma_wait<0>(second);
    EXPECT_EQ(second[7][3], 0);
  });
}

}  // namespace
}  // namespace choir::cuda
