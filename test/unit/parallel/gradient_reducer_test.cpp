// Sums over micro-batches on one rank: plain accumulation and the binary tree.
#include "src/models/gpt/gpt.hpp"
#include "src/parallel/gradients/gradient_sums.hpp"

#include <gtest/gtest.h>

#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

using Flat = std::vector<float>;

/// The gradients of micro-batch j have very different magnitudes, so that the order of sums
/// matters.
float number(std::int64_t j, std::int64_t i) {
  const PhiloxKey key = philox_key(2, "gradient");
  const auto index = static_cast<std::uint64_t>(j * 100'000 + i);
  return static_cast<float>(normal_at(key, index) *
                            std::pow(10.0, 4 * uniform01(philox_at(key, index)[3])));
}

/// Result of the reducer for `micro_batches` micro-batches on one rank.
Flat reduced(std::int64_t micro_batches, bool reproducible) {
  CpuDevice device;
  test::SingleRank single;
  ParameterSet set;
  const Gpt model(test::tiny_gpt(), set);
  ParameterStorage storage(set, precision_of("fp32"), device, single.mesh->along(Axis::data), true);
  ParameterGatherer gatherer(storage, device);
  GradientReducer reducer(storage, gatherer, device, micro_batches, reproducible);
  for (std::int64_t j = 0; j < micro_batches; ++j) {
    reducer.begin_micro_batch(Stream(device), j);
    for (int b = static_cast<int>(set.buckets().size()) - 1; b >= 0; --b) {
      const Bucket& bucket = set.buckets()[static_cast<std::size_t>(b)];
      reducer.begin_gradients(b);
      for (Parameter* p : bucket.parameters) {
        const bool add = p->accumulate();
        auto* g = p->gradient.as<float>();
        for (std::int64_t i = 0; i < p->count(); ++i) {
          const float fresh = number(j, bucket.offset + p->offset + i);
          g[i] = add ? g[i] + fresh : fresh;
        }
      }
      reducer.gradients_ready(b);
    }
  }
  reducer.finish();
  Flat all;
  for (const Parameter& p : set.parameters())
    all.insert(all.end(), p.gradient.as<float>(), p.gradient.as<float>() + p.count());
  return all;
}

/// The explicit tree over [first, first + n).
float tree(std::int64_t first, std::int64_t n, std::int64_t i) {
  return n == 1 ? number(first, i) : tree(first, n / 2, i) + tree(first + n / 2, n / 2, i);
}
float chain(std::int64_t, std::int64_t n, std::int64_t i) {
  float sum = 0;
  for (std::int64_t j = 0; j < n; ++j) sum += number(j, i);
  return sum;
}

Flat expected(std::int64_t n, float (*sum)(std::int64_t, std::int64_t, std::int64_t)) {
  ParameterSet set;
  const Gpt model(test::tiny_gpt(), set);
  set.place(1);
  Flat all;
  for (const Parameter& p : set.parameters())
    for (std::int64_t i = 0; i < p.count(); ++i)
      all.push_back(
          sum(0, n, set.buckets()[static_cast<std::size_t>(p.bucket)].offset + p.offset + i));
  return all;
}

TEST(GradientReducer, ReproducibleSumIsTheBinaryTree) {
  for (const std::int64_t n : {1, 2, 4, 8, 16}) EXPECT_EQ(reduced(n, true), expected(n, tree)) << n;
}

TEST(GradientReducer, PlainSumIsTheChain) {
  for (const std::int64_t n : {1, 3, 4}) EXPECT_EQ(reduced(n, false), expected(n, chain)) << n;
  EXPECT_NE(expected(4, tree), expected(4, chain)) << "or the tests above say nothing";
}

TEST(GradientReducer, TreeNeedsAPowerOfTwo) {
  EXPECT_THROW(reduced(6, true), Error);
}

}  // namespace
}  // namespace choir
