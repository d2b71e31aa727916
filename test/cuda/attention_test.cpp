// Attention by our own kernels against the naive reference in f64.
#include "test/cuda/cuda_fixture.hpp"
#include "test/support/gradcheck.hpp"
#include "test/unit/ops/attention_case.hpp"

namespace choir::test {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

/// In the order of AttentionMemory.
template <class Tensors>
auto all_of(Tensors& t) {
  return std::array{&t.q,     &t.kv,  &t.bias, &t.out,   &t.log_sum_exp,
                    &t.d_out, &t.d_q, &t.d_kv, &t.d_bias};
}

/// The tensors of a case on the device; `skew` elements into their buffers, so that rows begin at
/// addresses that are multiples of nothing.
class OnDevice {
 public:
  OnDevice(Device& device, const AttentionTensors& t, const AttentionCase& c, int skew = 0)
      : device_(device), t_(t), skew_(skew), lengths_(lengths(device, c)) {
    for (const HostTensor* x : all_of(t)) parts_.push_back(part(*x));
    memory_ = {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), nullptr};
    if (!c.lengths.empty()) memory_.lengths = lengths_.view().as<std::int32_t>();
  }
  void forward(const Stream& stream, bool training = true) const {
    ops::AttentionForward args = t_.forward(memory_);
    if (!training) args.log_sum_exp = {};
    args.problem.implementation = ops::AttentionImplementation::own;
    ops::attention_forward(stream, args);
  }
  void backward(const Stream& stream) const {
    ops::AttentionBackward args = t_.backward(memory_);
    args.problem.implementation = ops::AttentionImplementation::own;
    const DeviceTensor workspace(device_, DType::u8,
                                 {ops::attention_workspace(stream, args.problem, true)});
    args.workspace = workspace;
    ops::attention_backward(stream, args);
    stream.synchronize();
    EXPECT_TRUE(workspace.intact());
  }
  /// Everything back into the tensors of `t`.
  void copy_to(AttentionTensors& t) const {
    const auto to = all_of(t);
    for (std::size_t i = 0; i < to.size(); ++i)
      if (parts_[i]) {
        device_.copy_to_host(to[i]->data(), at(i), to[i]->bytes());
        EXPECT_TRUE(parts_[i]->intact()) << "tensor " << i;
      }
  }

 private:
  static DeviceTensor lengths(Device& device, const AttentionCase& c) {
    std::vector<std::int32_t> values = c.lengths;
    if (values.empty()) values.push_back(0);
    return {device, DType::i32, {static_cast<std::int64_t>(values.size())}, values.data()};
  }
  std::unique_ptr<DeviceTensor> part(const HostTensor& x) const {
    if (x.count() == 0) return nullptr;
    const int skew = &x == &t_.log_sum_exp ? 0 : skew_;
    auto made = std::make_unique<DeviceTensor>(device_, x.dtype(), Shape{x.count() + skew});
    device_.copy_from_host(
        static_cast<char*>(made->view().data) + static_cast<std::size_t>(skew) * size_of(x.dtype()),
        x.data(), x.bytes());
    return made;
  }
  void* at(std::size_t i) const {
    if (!parts_[i]) return nullptr;
    const TensorView& view = parts_[i]->view();
    const bool moved = i != 4;  // statistics are always where a float may be
    return static_cast<char*>(view.data) +
           (moved ? static_cast<std::size_t>(skew_) * size_of(view.dtype) : 0);
  }

  Device& device_;
  const AttentionTensors& t_;
  int skew_;
  DeviceTensor lengths_;
  std::vector<std::unique_ptr<DeviceTensor>> parts_;
  AttentionMemory memory_{};
};

class CudaAttention : public CudaTest {
 protected:
  AttentionTensors computed(const AttentionCase& c, const AttentionTensors& inputs, int skew = 0) {
    AttentionTensors t = inputs;
    const OnDevice tensors(device(), t, c, skew);
    tensors.forward(stream());
    tensors.backward(stream());
    tensors.copy_to(t);
    return t;
  }
  AttentionTensors computed(const AttentionCase& c, int skew = 0) {
    return computed(c, AttentionTensors(c, 1), skew);
  }

  /// The bounds of the CPU's kernels: P and dS are rounded as operands there too, `out` as stored
  /// is read for delta, sums are f32.
  void compare(const AttentionCase& c, int skew = 0) {
    const std::string what = name_of(c);
    const AttentionTensors t = computed(c, skew), exact = AttentionTensors(c, 1).exact();
    const AttentionTolerance tolerance(c);
    ref::attention_forward(exact.forward());
    ref::attention_backward(exact.backward());
    expect_close(t.out, exact.out, tolerance.stored * 1.01, tolerance.sums + 2 * tolerance.stored,
                 "out " + what);
    expect_norm(t.out, exact.out, tolerance.sums + tolerance.stored, "out " + what);
    compare_lse(t.log_sum_exp, exact.log_sum_exp, tolerance.sums, "lse " + what);
    const double limit = 4 * tolerance.sums + 1.5 * tolerance.stored;
    // With one key dP and delta cancel: both are sums of order sqrt(D), and dS is times P <= 1.
    const double floor = 4 * tolerance.sums, wide = std::sqrt(static_cast<double>(c.width));
    expect_norm(t.d_q, exact.d_q, limit, "d_q " + what, floor);
    if (t.d_kv.count() > 0) expect_norm(t.d_kv, exact.d_kv, limit, "d_kv " + what, floor);
    if (t.d_bias.count() > 0)
      expect_norm(t.d_bias, exact.d_bias, limit, "d_bias " + what, floor * wide);
  }
  void over_types(AttentionCase c) {
    for (const DType type : kTypes) c.dtype = type, compare(c);
  }
};

/// Every head width with every pair of lengths; types, heads and features take turns so that each
/// meets each.
TEST_F(CudaAttention, Grid) {
  const std::int64_t lengths[] = {1, 17, 64, 65, 130};
  std::size_t turn = 0;
  for (const std::int64_t d : {4, 20, 32, 40, 64, 80, 128})
    for (const std::int64_t queries : lengths)
      for (const std::int64_t keys : lengths) {
        AttentionCase c{.batch = 2,
                        .heads = 2,
                        .kv_heads = 1 + static_cast<std::int64_t>(turn % 2),
                        .width = d,
                        .queries = queries,
                        .keys = keys,
                        .causal = keys >= queries && turn % 5 < 3,
                        .dtype = kTypes[turn % 3],
                        .bias = static_cast<BiasKind>(turn % 4)};
        if (turn % 7 < 3)
          c.lengths = {static_cast<std::int32_t>(keys), static_cast<std::int32_t>(keys / 2)};
        compare(c);
        ++turn;
      }
}

TEST_F(CudaAttention, WithoutStatistics) {
  for (const DType type : kTypes) {
    const AttentionCase c{.queries = 20, .keys = 20, .dtype = type};
    AttentionTensors t(c, 1);
    const AttentionTensors both = computed(c);
    const OnDevice tensors(device(), t, c);
    tensors.forward(stream(), false);
    stream().synchronize();
    tensors.copy_to(t);
    EXPECT_TRUE(t.out.same_bits(both.out)) << name_of(c);
    for (std::int64_t i = 0; i < t.log_sum_exp.count(); ++i)
      ASSERT_TRUE(std::isnan(t.log_sum_exp[i]));
  }
}

TEST_F(CudaAttention, EveryHeadWidth) {
  for (const std::int64_t d : {4, 20, 32, 40, 64, 80, 128})
    over_types({.batch = 1, .heads = 2, .kv_heads = 1, .width = d, .queries = 65, .keys = 65});
}

TEST_F(CudaAttention, EveryLength) {
  for (const std::int64_t t : {1, 17, 64, 130})
    for (const bool causal : {true, false})
      over_types({.batch = 1,
                  .heads = 1,
                  .kv_heads = 1,
                  .width = 32,
                  .queries = t,
                  .keys = t,
                  .causal = causal});
}

TEST_F(CudaAttention, OddWidthsAndAddresses) {
  over_types({.batch = 2, .heads = 3, .kv_heads = 1, .width = 33, .queries = 17, .keys = 40});
  for (const DType type : kTypes)
    for (const BiasKind bias : {BiasKind::none, BiasKind::full})
      compare({.batch = 1,
               .heads = 1,
               .kv_heads = 1,
               .width = 128,
               .queries = 30,
               .keys = 70,
               .dtype = type,
               .bias = bias},
              1);
}

TEST_F(CudaAttention, GroupedQueries) {
  for (const std::int64_t kv : {1, 2, 4})
    over_types({.batch = 2, .heads = 4, .kv_heads = kv, .width = 16, .queries = 70, .keys = 70});
}

TEST_F(CudaAttention, QueriesAgainstACache) {
  for (const std::int64_t keys : {1, 33, 130})
    over_types({.batch = 2, .heads = 2, .kv_heads = 1, .width = 64, .queries = 1, .keys = keys});
  over_types({.batch = 1, .heads = 1, .kv_heads = 1, .width = 32, .queries = 19, .keys = 150});
  over_types({.batch = 1,
              .heads = 1,
              .kv_heads = 1,
              .width = 32,
              .queries = 140,
              .keys = 9,
              .causal = false});
}

TEST_F(CudaAttention, RaggedLengths) {
  for (const bool causal : {true, false})
    over_types({.batch = 5,
                .heads = 2,
                .kv_heads = 1,
                .width = 16,
                .queries = 70,
                .keys = 70,
                .causal = causal,
                .lengths = {70, 33, 1, 0, 64}});
}

TEST_F(CudaAttention, BiasOfEveryKind) {
  for (const BiasKind kind : {BiasKind::full, BiasKind::shared, BiasKind::shifted})
    for (const bool causal : {true, false})
      over_types({.batch = 2,
                  .heads = 2,
                  .kv_heads = 1,
                  .width = causal ? 64 : 20,
                  .queries = 65,
                  .keys = causal ? 75 : 140,
                  .causal = causal,
                  .lengths = {65, 33},
                  .bias = kind});
  for (const std::int64_t d : {32, 96, 128})
    over_types({.batch = 1,
                .heads = 1,
                .kv_heads = 1,
                .width = d,
                .queries = 40,
                .keys = 100,
                .bias = BiasKind::full});
}

TEST_F(CudaAttention, BiasOfMinusInfinityHidesKeys) {
  for (const DType type : kTypes) {
    AttentionCase c{.batch = 1,
                    .heads = 2,
                    .kv_heads = 1,
                    .width = 16,
                    .queries = 20,
                    .keys = 90,
                    .causal = false,
                    .dtype = type,
                    .bias = BiasKind::full};
    AttentionTensors hidden(c, 1);
    for (std::int64_t i = 0; i < hidden.bias.count(); ++i)
      hidden.bias.set(i, i % c.keys >= 33 || i / c.keys == 3 ? -INFINITY : 0);  // query 3 sees none
    const AttentionTensors t = computed(c, hidden), exact = hidden.exact();
    ref::attention_forward(exact.forward());
    ref::attention_backward(exact.backward());
    const AttentionTolerance tolerance(c);
    const double limit = 4 * tolerance.sums + 1.5 * tolerance.stored;
    compare_lse(t.log_sum_exp, exact.log_sum_exp, tolerance.sums, name_of(c));
    expect_norm(t.out, exact.out, limit, "out " + name_of(c));
    expect_norm(t.d_q, exact.d_q, limit, "d_q " + name_of(c));
    expect_norm(t.d_kv, exact.d_kv, limit, "d_kv " + name_of(c));
  }
}

TEST_F(CudaAttention, KeysBeyondTheLengthAreNeverUsed) {
  for (const DType type : kTypes)
    for (const std::int64_t width : {20, 32}) {
      const AttentionCase c{.batch = 2,
                            .heads = 1,
                            .kv_heads = 1,
                            .width = width,
                            .queries = 20,
                            .keys = 40,
                            .causal = false,
                            .dtype = type,
                            .lengths = {17, 33}};
      const AttentionTensors clean(c, 1);
      AttentionTensors dirty(c, 1);
      const std::int64_t row = dirty.kv.shape().back(), capacity = dirty.kv.shape()[1];
      for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t i = c.lengths[static_cast<std::size_t>(b)] * row; i < capacity * row; ++i)
          dirty.kv.set(b * capacity * row + i, NAN);
      const AttentionTensors a = computed(c, clean), b = computed(c, dirty);
      EXPECT_TRUE(a.out.same_bits(b.out) && a.d_q.same_bits(b.d_q)) << name_of(c);
      EXPECT_TRUE(a.d_kv.same_bits(b.d_kv)) << name_of(c);
    }
}

/// Scores that rise from key to key by far more than the slack of the running maximum.
TEST_F(CudaAttention, RisingAndSharpScores) {
  for (const DType type : kTypes) {
    const AttentionCase c{.batch = 1,
                          .heads = 1,
                          .kv_heads = 1,
                          .width = 32,
                          .queries = 20,
                          .keys = 200,
                          .dtype = type,
                          .bias = BiasKind::full};
    AttentionTensors rising(c, 1);
    for (std::int64_t i = 0; i < rising.bias.count(); ++i)
      rising.bias.set(i, static_cast<double>(i % c.keys) - 100.0);
    const AttentionTensors t = computed(c, rising), exact = rising.exact();
    ref::attention_forward(exact.forward());
    ref::attention_backward(exact.backward());
    // Scores up to 100 lose 100 units of roundoff, which P takes over.
    const AttentionTolerance tolerance(c);
    const double sums = tolerance.sums + 200 * unit_roundoff(DType::f32);
    const double limit = 4 * sums + 1.5 * tolerance.stored;
    expect_norm(t.out, exact.out, limit, "out " + name_of(c));
    compare_lse(t.log_sum_exp, exact.log_sum_exp, sums, name_of(c));
    expect_norm(t.d_bias, exact.d_bias, limit, "d_bias " + name_of(c));
  }
}

TEST_F(CudaAttention, RepeatsBitwise) {
  for (const DType type : kTypes) {
    const AttentionCase c{.batch = 1,
                          .heads = 4,
                          .kv_heads = 2,
                          .width = 64,
                          .queries = 140,
                          .keys = 140,
                          .dtype = type};
    const AttentionTensors first = computed(c), second = computed(c);
    EXPECT_TRUE(first.out.same_bits(second.out) && first.d_q.same_bits(second.d_q)) << name_of(c);
    EXPECT_TRUE(first.log_sum_exp.same_bits(second.log_sum_exp)) << name_of(c);
  }
}

/// (L(x + hu) - L(x - hu)) / 2h with L = <d_out, out> in f32: its error is h^2 / 6 times a third
/// derivative of order one (4e-5) and the roundoff of L, of |d_out| |out| terms, over h (2e-5).
TEST_F(CudaAttention, GradientsAlongRandomDirections) {
  const AttentionCase c{.batch = 1,
                        .heads = 2,
                        .kv_heads = 1,
                        .width = 36,
                        .queries = 70,
                        .keys = 70,
                        .bias = BiasKind::shifted};
  AttentionTensors t(c, 3);
  const AttentionTensors done = computed(c, t);
  const auto loss = [&] {
    AttentionTensors at = t;
    const OnDevice tensors(device(), at, c);
    tensors.forward(stream());
    stream().synchronize();
    tensors.copy_to(at);
    return dot(at.out, at.d_out);
  };
  expect_directional(done.d_q, t.q, 1, loss, "packed q, k, v", 1e-4, 0x1p-6);
  expect_directional(done.stored_bias_gradient(), t.bias, 2, loss, "bias", 1e-4, 0x1p-6);
}

/// For the thread sanitizer: several tiles of queries and of keys, one small width of each kind.
TEST_F(CudaAttention, TensorCoresTsan) {
  compare({.batch = 1,
           .heads = 2,
           .kv_heads = 1,
           .width = 32,
           .queries = 140,
           .keys = 140,
           .causal = false,
           .dtype = DType::bf16});
}
TEST_F(CudaAttention, BiasTsan) {
  compare({.batch = 1,
           .heads = 1,
           .kv_heads = 1,
           .width = 8,
           .queries = 20,
           .keys = 140,
           .dtype = DType::f16,
           .bias = BiasKind::shifted});
}
TEST_F(CudaAttention, SinglesTsan) {
  compare({.batch = 1,
           .heads = 1,
           .kv_heads = 1,
           .width = 4,
           .queries = 70,
           .keys = 140,
           .dtype = DType::bf16});
}
TEST_F(CudaAttention, ExactTsan) {
  compare({.batch = 1,
           .heads = 2,
           .kv_heads = 1,
           .width = 8,
           .queries = 70,
           .keys = 140,
           .bias = BiasKind::shared});
}

TEST_F(CudaAttention, RefusesWhatItHasNoKernelFor) {
  const AttentionTensors t({.width = 132, .dtype = DType::bf16}, 1);
  EXPECT_THROW(ops::attention_workspace(stream(), t.problem(), false), DeckError);
  EXPECT_THROW(ops::attention_workspace(stream(), t.problem(), true), DeckError);
  const AttentionTensors exact({.dtype = DType::f64}, 1);
  EXPECT_THROW(ops::attention_workspace(stream(), exact.problem(), false), DeckError);
}

}  // namespace
}  // namespace choir::test
