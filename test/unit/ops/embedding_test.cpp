#include "choir/ops/embedding.hpp"

#include <omp.h>

#include "kernels/embedding.hpp"
#include "test/support/gradcheck.hpp"

namespace choir {
namespace {

TEST(Embedding, MatchesTheReferenceForwardAndBackward) {
  for (const DType dtype : kElementTypes)
    for (const std::int64_t width : {1, 3, 16, 17, 65, 128})
      for (const bool positions : {false, true}) {
        SCOPED_TRACE(fmt::format("{} C {} positions {}", name_of(dtype), width, positions));
        CpuBench cpu;
        constexpr std::int64_t kRows = 42, kTokens = 6, kVocabulary = 5;
        ops::EmbeddingForward f, fe;
        const HostTensor ids = HostTensor::integers({kRows}, 1, kVocabulary);
        const HostTensor table = HostTensor::normal(dtype, {kVocabulary, width}, 2);
        const HostTensor learned = HostTensor::normal(dtype, {10, width}, 3);
        const HostTensor table64 = table.to(DType::f64), learned64 = learned.to(DType::f64);
        HostTensor out(dtype, {kRows, width}), exact(DType::f64, {kRows, width});
        f.ids = ids, f.table = table, f.tokens = kTokens, f.first_position = 4, f.out = out;
        if (positions) f.positions = learned;
        fe = f, fe.table = table64, fe.out = exact;
        if (positions) fe.positions = learned64;
        ops::embedding_forward(cpu.stream, f);
        ref::embedding_forward(fe);
        expect_close(out, exact, operation_roundoff(dtype), 0, "embedding");  // one sum

        const DType sums = sum_dtype(dtype);
        const HostTensor d_out = HostTensor::normal(dtype, {kRows, width}, 4),
                         d_out64 = d_out.to(DType::f64);
        HostTensor d_table = HostTensor::normal(sums, {kVocabulary, width}, 5);
        HostTensor d_positions = HostTensor::normal(sums, {10, width}, 6);
        HostTensor d_table64 = d_table.to(DType::f64), d_positions64 = d_positions.to(DType::f64);
        ops::EmbeddingBackward b, be;
        b.ids = ids, b.d_out = d_out, b.d_table = d_table, b.tokens = kTokens;
        if (positions) b.d_positions = d_positions;
        be = b, be.d_out = d_out64, be.d_table = d_table64;
        if (positions) be.d_positions = d_positions64;
        ops::embedding_backward(cpu.stream, b);
        ref::embedding_backward(be);
        // At most kRows additions of numbers below 5, each rounding a partial sum below 5 kRows.
        const double bound = kRows * unit_roundoff(sums) * 5 * kRows;
        expect_close(d_table, d_table64, 0, bound, "d_table");
        expect_close(d_positions, d_positions64, 0, bound, "d_positions");
        EXPECT_TRUE(out.guard_intact() && d_table.guard_intact() && d_positions.guard_intact());
      }
}

TEST(Embedding, BackwardIsTheTransposeOfForward) {
  CpuBench cpu;
  const HostTensor ids = HostTensor::integers({30}, 1, 7);
  HostTensor table = HostTensor::normal(DType::f64, {7, 9}, 2),
             learned = HostTensor::normal(DType::f64, {5, 9}, 3);
  HostTensor out(DType::f64, {30, 9});
  const HostTensor w = HostTensor::normal(DType::f64, {30, 9}, 4);
  HostTensor d_table = HostTensor::filled(DType::f64, {7, 9}, 0),
             d_learned = HostTensor::filled(DType::f64, {5, 9}, 0);
  const auto loss = [&] {
    ops::embedding_forward(cpu.stream, {ids, table, learned, 5, 0, out});
    return dot(out, w);
  };
  ops::embedding_backward(cpu.stream, {ids, w, d_table, d_learned, 5});
  expect_gradient(d_table, table, loss, "embedding to table");
  expect_gradient(d_learned, learned, loss, "embedding to positions");
}

TEST(Embedding, BitsDoNotDependOnThreads) {
  const int threads = omp_get_max_threads();
  const HostTensor ids = HostTensor::integers({700}, 1, 11);
  const HostTensor d_out = HostTensor::normal(DType::f32, {700, 77}, 2);
  HostTensor first;
  for (int n = 1; n <= 4; ++n) {
    omp_set_num_threads(n);
    CpuBench cpu;
    HostTensor d_table = HostTensor::filled(DType::f32, {11, 77}, 0);
    ops::embedding_backward(cpu.stream, {ids, d_out, d_table, {}, 7});
    if (n == 1) first = d_table;
    EXPECT_TRUE(d_table.same_bits(first)) << n << " threads";
  }
  omp_set_num_threads(threads);
}

TEST(Embedding, RefusesIdsOutsideTheTable) {
  CpuBench cpu;
  HostTensor ids = HostTensor::integers({4}, 1, 3);
  const HostTensor table(DType::f32, {3, 8}), out(DType::f32, {4, 8});
  ids.set(2, 3);
  EXPECT_THROW(ops::embedding_forward(cpu.stream, {ids, table, {}, 4, 0, out}), Error);
  ids.set(2, -1);
  EXPECT_THROW(ops::embedding_forward(cpu.stream, {ids, table, {}, 4, 0, out}), Error);
}

}  // namespace
}  // namespace choir
