#include "kernels/embedding/embedding.hpp"

#include <omp.h>

#include "src/device/null_device.hpp"
#include "test/support/embedding_case.hpp"
#include "test/support/gradcheck.hpp"

namespace choir {
namespace {

TEST(Embedding, MatchesTheReferenceForwardAndBackward) {
  CpuDevice cpu;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t width : {1, 3, 16, 17, 65, 128})
      for (const bool positions : {false, true})
        test::EmbeddingCase{dtype, 42, 6, 5, width, positions}.check(cpu);
}

TEST(Embedding, PaddingNeedsNoPosition) {
  CpuDevice cpu;
  // Positions 4 to 9; the last ones, or all of them, are padding.
  for (const std::int64_t end : {10, 9, 5, 4, 3}) {
    test::EmbeddingCase c{DType::f32, 42, 6, 5, 24, true};
    c.end = end;
    c.check(cpu);
    c.rows = 40;  // ends inside a sample
    c.ids = HostTensor::integers({40}, 1, 5);
    c.check(cpu);
  }
}

TEST(Embedding, AddsToWhatIsThere) {
  CpuDevice cpu;
  for (const DType dtype : kElementTypes)
    for (const std::int64_t width : {1, 17, 128})
      for (const bool positions : {false, true}) {
        test::EmbeddingCase c{dtype, 42, 6, 5, width, positions};
        c.accumulate = true;
        c.check(cpu);
      }
}

TEST(Embedding, WorkspaceIsThatOfTheDeviceThatIsPlannedFor) {
  CpuDevice cpu;
  NullDevice like_cpu, like_cuda(DeviceKind::cuda);
  EXPECT_EQ(ops::embedding_workspace(Stream(cpu), 4096, 65, 128), 0);
  EXPECT_EQ(ops::embedding_workspace(Stream(like_cpu), 4096, 65, 128), 0);
  // The workspace has sorted keys and their positions twice, and two slots of 128 sums for every 64
  // rows.
  EXPECT_GE(ops::embedding_workspace(Stream(like_cuda), 4096, 65, 128),
            4 * 4 * 4096 + 4096 / 64 * 2 * 128 * 4);
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

// The results of the parts of a table add up to that of the table, to the bit: all terms but one
// are zero.
TEST(Embedding, ADividedTableIsTheSum) {
  CpuBench cpu;
  constexpr std::int64_t kRows = 40, kVocabulary = 19, kPart = 8, kWidth = 5, kTokens = 7;
  const HostTensor ids = HostTensor::integers({kRows}, 1, kVocabulary);
  const HostTensor learned = HostTensor::normal(DType::f64, {kTokens, kWidth}, 3);
  const HostTensor d_out = HostTensor::normal(DType::f64, {kRows, kWidth}, 4);
  HostTensor table = HostTensor::normal(DType::f64, {3 * kPart, kWidth}, 2);
  HostTensor out(DType::f64, {kRows, kWidth}), sum = HostTensor::filled(DType::f64, out.shape(), 0);
  HostTensor d_table = HostTensor::filled(DType::f64, {kVocabulary, kWidth}, 0);
  const TensorView rows = table.view();
  ops::embedding_forward(cpu.stream, {ids, rows.slice(0, kVocabulary), learned, kTokens, 0, out});
  ops::embedding_backward(cpu.stream, {ids, d_out, d_table, {}, kTokens});
  for (std::int64_t part = 0; part < 3; ++part) {
    HostTensor terms(DType::f64, out.shape()), d_part(DType::f64, {kPart, kWidth});
    for (std::int64_t i = 0; i < d_part.count(); ++i) d_part.set(i, 0);
    ops::embedding_forward(cpu.stream, {.ids = ids,
                                        .table = rows.slice(part * kPart, kPart),
                                        .positions = part == 0 ? learned.view() : TensorView{},
                                        .tokens = kTokens,
                                        .out = terms,
                                        .first_id = part * kPart,
                                        .vocabulary = kVocabulary});
    for (std::int64_t i = 0; i < sum.count(); ++i) sum.set(i, sum[i] + terms[i]);
    ops::embedding_backward(cpu.stream, {.ids = ids,
                                         .d_out = d_out,
                                         .d_table = d_part,
                                         .d_positions = {},
                                         .tokens = kTokens,
                                         .first_id = part * kPart,
                                         .vocabulary = kVocabulary,
                                         .workspace = {}});
    for (std::int64_t i = 0; i < d_part.count(); ++i) {
      const std::int64_t whole = part * kPart * kWidth + i;
      EXPECT_EQ(d_part[i], whole < d_table.count() ? d_table[whole] : 0.0);
    }
  }
  EXPECT_TRUE(sum.same_bits(out));
  EXPECT_THROW(ops::embedding_forward(cpu.stream, {.ids = ids,
                                                   .table = rows.slice(0, kPart),
                                                   .positions = {},
                                                   .out = out,
                                                   .vocabulary = 10}),
               Error)
      << "an id of nobody";
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
