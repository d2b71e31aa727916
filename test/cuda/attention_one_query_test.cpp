// Tests of one query per sample, as in generation, against the naive reference in f64.
#include "test/cuda/attention_fixture.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {
namespace {

class CudaOneQuery : public CudaTest {
 protected:
  /// Runs forward with room for `room` keys (0: for the existing ones); the unused keys are NaN,
  /// and only the device has the number of keys.
  AttentionTensors computed(const AttentionCase& c, std::int64_t room = 0) {
    AttentionCase roomy = c;
    if (room > 0) roomy.keys = room;
    AttentionTensors t(roomy, 1);
    const AttentionTensors exact(c, 1);
    for (std::int64_t b = 0; b < c.batch; ++b) {
      const std::int64_t row = t.kv.shape().back(), rows = t.kv.shape()[1];
      for (std::int64_t i = 0; i < rows * row; ++i)
        t.kv.set(b * rows * row + i,
                 i < c.keys * row ? exact.kv[b * exact.kv.shape()[1] * row + i] : NAN);
    }
    const auto seen = static_cast<std::int32_t>(c.keys - 1);
    Mirror mirror(device());
    const auto integers = [&](const std::vector<std::int32_t>& values) -> const std::int32_t* {
      if (values.empty()) return nullptr;
      HostTensor host(DType::i32, {std::ssize(values)});
      std::memcpy(host.data(), values.data(), host.bytes());
      return mirror.in(host).as<std::int32_t>();
    };
    AttentionMemory at{};
    at.q = mirror.in(t.q).data, at.kv = mirror.in(t.kv).data, at.out = mirror.io(t.out).data;
    at.log_sum_exp = mirror.io(t.log_sum_exp).data;
    at.lengths = integers(c.lengths), at.begins = integers(c.begins);
    ops::AttentionForward args = t.forward(at);
    if (room > 0) args.problem.seen = integers({seen});
    args.workspace = mirror.workspace(ops::attention_workspace(stream(), args.problem, false));
    ops::attention_forward(stream(), args);
    mirror.fetch();
    return t;
  }
  void compare(AttentionCase c) {
    c.queries = 1;
    for (const DType type : kAttentionTypes) {
      c.dtype = type;
      const std::string what = name_of(c);
      const AttentionTensors t = computed(c), exact = AttentionTensors(c, 1).exact();
      const AttentionTolerance tolerance(c);
      ref::attention_forward(exact.forward());
      expect_close(t.out, exact.out, tolerance.stored * 1.01, tolerance.sums, "out " + what);
      compare_lse(t.log_sum_exp, exact.log_sum_exp, tolerance.sums, "lse " + what);
      for (const std::int64_t room : {c.keys + 40, c.keys + 2100}) {
        const AttentionTensors roomy = computed(c, room);
        EXPECT_TRUE(roomy.out.same_bits(t.out)) << what << ", room for " << room;
        EXPECT_TRUE(roomy.log_sum_exp.same_bits(t.log_sum_exp)) << what << ", room for " << room;
      }
    }
  }
};

TEST_F(CudaOneQuery, OnePartOfKeysOrSeveral) {
  for (const std::int64_t keys : {2, 63, 1023, 1024, 1025, 2500})
    compare({.batch = 1, .heads = 2, .kv_heads = 1, .width = 64, .keys = keys});
}

TEST_F(CudaOneQuery, EveryHeadWidth) {
  for (const std::int64_t width : {8, 32, 40, 80, 96, 128, 136, 256})
    compare({.batch = 1, .heads = 2, .kv_heads = 1, .width = width, .keys = 70});
}

TEST_F(CudaOneQuery, LengthsWindowsAndDocuments) {
  compare({.batch = 4,
           .heads = 1,
           .kv_heads = 1,
           .width = 32,
           .keys = 1500,
           .lengths = {1500, 1024, 3, 0}});
  for (const std::int64_t window : {1, 100, 1400})
    compare({.batch = 1, .heads = 2, .kv_heads = 1, .width = 32, .keys = 1500, .window = window});
  compare({.batch = 3,
           .heads = 1,
           .kv_heads = 1,
           .width = 32,
           .keys = 1200,
           .begins = documents(3, 900, {0, 30, 899})});
}

TEST_F(CudaOneQuery, SoftCap) {
  for (const double cap : {0.5, 50.0})
    compare({.batch = 1,
             .heads = 2,
             .kv_heads = 1,
             .width = 64,
             .keys = 1100,
             .window = 700,
             .softcap = cap});
  compare({.batch = 1, .heads = 2, .kv_heads = 1, .width = 256, .keys = 1100, .softcap = 50.0});
}

TEST_F(CudaOneQuery, ScoresFarApart) {
  AttentionCase c{.batch = 1, .heads = 1, .kv_heads = 1, .width = 32, .queries = 1, .keys = 1100};
  AttentionTensors t(c, 1);
  for (std::int64_t i = 0; i < t.q.count(); ++i) t.q.set(i, 40 * t.q[i]);
  HostTensor out64 = t.out.to(DType::f64);
  const AttentionTensors exact = t.exact();
  ref::attention_forward(exact.forward());
  Mirror mirror(device());
  AttentionMemory at{};
  at.q = mirror.in(t.q).data, at.kv = mirror.in(t.kv).data, at.out = mirror.io(t.out).data;
  ops::AttentionForward args = t.forward(at);
  args.log_sum_exp = {};
  args.workspace = mirror.workspace(ops::attention_workspace(stream(), args.problem, false));
  ops::attention_forward(stream(), args);
  mirror.fetch();
  // Scores of some 200 have errors of as many roundings of their products.
  expect_close(t.out, exact.out, 0, 200 * 4 * 0x1p-24 * 8, "far apart");
}

TEST_F(CudaOneQuery, RefusesANumberOfKeysThatNoKernelReads) {
  const AttentionCase c{
      .batch = 1, .heads = 1, .kv_heads = 1, .width = 32, .queries = 2, .keys = 9};
  AttentionTensors t(c, 1);
  Mirror mirror(device());
  HostTensor seen = HostTensor::filled(DType::i32, {1}, 8);
  AttentionMemory at{};
  at.q = mirror.in(t.q).data, at.kv = mirror.in(t.kv).data, at.out = mirror.io(t.out).data;
  ops::AttentionForward args = t.forward(at);
  args.log_sum_exp = {};
  args.problem.seen = mirror.in(seen).as<std::int32_t>();
  EXPECT_THROW(ops::attention_forward(stream(), args), Error);
}

}  // namespace
}  // namespace choir::test
