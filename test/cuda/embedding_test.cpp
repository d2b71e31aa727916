#include "test/support/embedding_case.hpp"

#include "test/cuda/cuda_fixture.hpp"

namespace choir::test {
namespace {

class CudaEmbedding : public CudaTest {
 protected:
  /// Runs backward of ids on a table of `vocabulary` rows, from zero.
  HostTensor gradient(const HostTensor& ids, const HostTensor& d_out, std::int64_t vocabulary) {
    const std::int64_t width = d_out.shape()[1], rows = ids.count();
    HostTensor d_table = HostTensor::filled(DType::f32, {vocabulary, width}, 0);
    Mirror mirror(device());
    ops::embedding_backward(stream(), {.ids = mirror.in(ids),
                                       .d_out = mirror.in(d_out),
                                       .d_table = mirror.io(d_table),
                                       .workspace = mirror.workspace(ops::embedding_workspace(
                                           stream(), rows, vocabulary, width))});
    mirror.fetch();
    return d_table;
  }
};

TEST_F(CudaEmbedding, MatchesTheReferenceForwardAndBackward) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {1, 3, 16, 17, 65, 128})
      for (const bool positions : {false, true})
        EmbeddingCase{dtype, 42, 6, 5, width, positions}.check(device());
}

TEST_F(CudaEmbedding, SegmentsTilesAndPasses) {
  EmbeddingCase{DType::bf16, 1, 1, 1, 8, true}.check(device());
  EmbeddingCase{DType::bf16, 64, 8, 1, 24, true}.check(device());
  EmbeddingCase{DType::bf16, 65, 64, 1, 24, true}.check(
      device());  // rows that are no multiple of tokens
  EmbeddingCase{DType::bf16, 30, 64, 7, 24, true}.check(device());   // part of one sample
  EmbeddingCase{DType::bf16, 5000, 32, 3, 8, true}.check(device());  // three levels, few ids
  EmbeddingCase{DType::bf16, 4100, 4100, 65, 8, true}.check(device());
  EmbeddingCase{DType::f32, 2500, 4, 2000, 4, true}.check(device());    // two passes
  EmbeddingCase{DType::f32, 2100, 4, 70000, 1, false}.check(device());  // three
  EmbeddingCase{DType::bf16, 200, 10, 50, 300, true}.check(device());   // two blocks of columns
}

TEST_F(CudaEmbedding, AddsToWhatIsThere) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {1, 17, 128})
      for (const bool positions : {false, true}) {
        EmbeddingCase c{dtype, 42, 6, 5, width, positions};
        c.accumulate = true;
        c.check(device());
      }
}

TEST_F(CudaEmbedding, TheDeviceKnowsThePosition) {
  for (const DType dtype : kGpuTypes)
    for (const std::int64_t width : {17, 128}) {
      EmbeddingCase c{dtype, 12, 6, 5, width, true};
      c.on_device = 3;
      c.check(device());
    }
}

TEST_F(CudaEmbedding, AnyAlignment) {
  for (const DType dtype : kGpuTypes) {
    EmbeddingCase c{dtype, 70, 7, 9, 16, true};
    c.skew = 1;
    c.check(device());
  }
}

TEST_F(CudaEmbedding, PaddingNeedsNoPosition) {
  // Positions 4 to 9; the last ones, or all of them, are padding.
  for (const std::int64_t end : {10, 9, 5, 4, 3}) {
    EmbeddingCase c{DType::bf16, 42, 6, 5, 24, true};
    c.end = end;
    c.check(device());
    c.rows = 40;  // ends inside a sample
    c.ids = HostTensor::integers({40}, 1, 5);
    c.check(device());
  }
}

TEST_F(CudaEmbedding, SegmentsTsan) {
  EmbeddingCase{DType::bf16, 300, 60, 4, 8, true}.check(device());
}

// Integers add up without rounding, so every row must be counted exactly once.
TEST_F(CudaEmbedding, SkewedIdsAreCountedExactly) {
  for (const std::int64_t period : {1, 2, 63, 64, 65, 1000}) {
    constexpr std::int64_t kRows = 6000, kVocabulary = 300;
    HostTensor ids(DType::i32, {kRows}), ones = HostTensor::filled(DType::bf16, {kRows, 2}, 1);
    std::vector<double> counts(kVocabulary);
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::int64_t id = r * 7919 % kRows / period % kVocabulary;
      ids.set(r, static_cast<double>(id)), ++counts[static_cast<std::size_t>(id)];
    }
    const HostTensor d_table = gradient(ids, ones, kVocabulary);
    for (std::int64_t i = 0; i < 2 * kVocabulary; ++i)
      ASSERT_EQ(d_table[i], counts[static_cast<std::size_t>(i / 2)]) << i / 2 << " of " << period;
  }
}

TEST_F(CudaEmbedding, IdsOutsideTheTableAreNobodys) {
  constexpr std::int64_t kRows = 500, kVocabulary = 40;
  HostTensor ids = HostTensor::integers({kRows}, 1, 2 * kVocabulary);  // half of them outside
  for (std::int64_t r = 0; r < kRows; r += 3) ids.set(r, r % 2 ? -1.0 : -2147483648.0);
  const HostTensor table = HostTensor::normal(DType::bf16, {kVocabulary, 16}, 2);
  HostTensor out(DType::bf16, {kRows, 16}), ones = HostTensor::filled(DType::bf16, {kRows, 16}, 1);
  Mirror mirror(device());
  ops::embedding_forward(stream(),
                         {.ids = mirror.in(ids), .table = mirror.in(table), .out = mirror.io(out)});
  mirror.fetch();
  std::vector<double> counts(kVocabulary);
  for (std::int64_t r = 0; r < kRows; ++r) {
    const bool inside = ids[r] >= 0 && ids[r] < kVocabulary;
    if (inside) ++counts[static_cast<std::size_t>(ids[r])];
    for (std::int64_t c = 0; c < 16; ++c)
      ASSERT_EQ(out[r * 16 + c], inside ? table[static_cast<std::int64_t>(ids[r]) * 16 + c] : 0.0);
  }
  const HostTensor d_table = gradient(ids, ones, kVocabulary);
  for (std::int64_t i = 0; i < d_table.count(); ++i)
    ASSERT_EQ(d_table[i], counts[static_cast<std::size_t>(i / 16)]);
}

// A table that holds ids 40..79 of 80.
TEST_F(CudaEmbedding, RowsOfADividedTable) {
  constexpr std::int64_t kRows = 500, kPart = 40;
  const HostTensor ids = HostTensor::integers({kRows}, 1, 2 * kPart);
  const HostTensor table = HostTensor::normal(DType::bf16, {kPart, 16}, 2);
  HostTensor out(DType::bf16, {kRows, 16}), ones = HostTensor::filled(DType::bf16, {kRows, 16}, 1);
  HostTensor d_table = HostTensor::filled(DType::f32, {kPart, 16}, 0);
  Mirror mirror(device());
  ops::embedding_forward(stream(), {.ids = mirror.in(ids),
                                    .table = mirror.in(table),
                                    .positions = {},
                                    .out = mirror.io(out),
                                    .first_id = kPart,
                                    .vocabulary = 2 * kPart});
  ops::embedding_backward(
      stream(),
      {.ids = mirror.in(ids),
       .d_out = mirror.in(ones),
       .d_table = mirror.io(d_table),
       .d_positions = {},
       .first_id = kPart,
       .vocabulary = 2 * kPart,
       .workspace = mirror.workspace(ops::embedding_workspace(stream(), kRows, kPart, 16))});
  mirror.fetch();
  std::vector<double> counts(kPart);
  for (std::int64_t r = 0; r < kRows; ++r) {
    const auto row = static_cast<std::int64_t>(ids[r]) - kPart;
    if (row >= 0) ++counts[static_cast<std::size_t>(row)];
    for (std::int64_t c = 0; c < 16; ++c)
      ASSERT_EQ(out[r * 16 + c], row >= 0 ? table[row * 16 + c] : 0.0);
  }
  for (std::int64_t i = 0; i < d_table.count(); ++i)
    ASSERT_EQ(d_table[i], counts[static_cast<std::size_t>(i / 16)]);
}

/// The sum for one column of the ids in the order that kernels/embedding/embedding.cu states, in
/// f32: sorted rows are cut into segments of 64; an id that lies within one segment is added to the
/// total, and the sums of the other ids are written to the next free one of the two slots of a
/// segment in the next list.
std::vector<float> in_segments(const HostTensor& ids, const HostTensor& d_out,
                               std::int64_t vocabulary) {
  struct Item {
    std::int64_t id, place;
    float value;
  };
  std::vector<Item> list;
  for (std::int64_t id = 0; id < vocabulary; ++id)
    for (std::int64_t r = 0; r < ids.count(); ++r)
      if (static_cast<std::int64_t>(ids[r]) == id)
        list.push_back({id, static_cast<std::int64_t>(list.size()), static_cast<float>(d_out[r])});
  std::vector<float> total(static_cast<std::size_t>(vocabulary));
  while (!list.empty()) {
    std::vector<Item> next;
    for (std::size_t i = 0; i < list.size();) {
      const std::int64_t id = list[i].id, segment = list[i].place / 64;
      const bool before = i > 0 && list[i - 1].id == id;
      float sum = 0;
      for (; i < list.size() && list[i].id == id && list[i].place / 64 == segment; ++i)
        sum += list[i].value;
      const bool behind = i < list.size() && list[i].id == id;
      const bool second = !next.empty() && next.back().place / 2 == segment;
      if (before || behind)
        next.push_back({id, 2 * segment + (second ? 1 : 0), sum});
      else
        total[static_cast<std::size_t>(id)] += sum;
    }
    list = next;
  }
  return total;
}

TEST_F(CudaEmbedding, TheOrderOfAdditionsIsTheOneStated) {
  constexpr std::int64_t kRows = 9000;
  const HostTensor d_out = HostTensor::normal(DType::f32, {kRows, 1}, 2);
  const auto check = [&](const HostTensor& ids, std::int64_t vocabulary) {
    const HostTensor d_table = gradient(ids, d_out, vocabulary);
    const std::vector<float> stated = in_segments(ids, d_out, vocabulary);
    for (std::int64_t id = 0; id < vocabulary; ++id)
      ASSERT_EQ(d_table.as<float>()[id], stated[static_cast<std::size_t>(id)])
          << id << " of " << vocabulary;
  };
  for (const std::int64_t vocabulary : {1, 3, 20, 65, 400})
    check(HostTensor::integers({kRows}, 1, vocabulary), vocabulary);
  // An id that fills a segment, one that ends in the next, and one that continues from there: its
  // first sum takes the first slot of its segment, and an empty second slot must not split it.
  HostTensor ids(DType::i32, {kRows});
  for (std::int64_t r = 0; r < kRows; ++r) ids.set(r, r < 64 ? 0 : r < 74 ? 1 : r < 400 ? 2 : 3);
  check(ids, 4);
}

// Ascending: 2^24 + 1 + 1 stays 2^24 in f32, 1 + 1 + 2^24 does not.
TEST_F(CudaEmbedding, RowsOfAnIdAreAddedInAscendingOrder) {
  HostTensor ids = HostTensor::filled(DType::i32, {3}, 0);
  HostTensor d_out = HostTensor::filled(DType::f32, {3, 1}, 1);
  d_out.set(0, 0x1p24);
  EXPECT_EQ(gradient(ids, d_out, 1)[0], 0x1p24);
  d_out.set(0, 1), d_out.set(2, 0x1p24);
  EXPECT_EQ(gradient(ids, d_out, 1)[0], 0x1p24 + 2);
}

}  // namespace
}  // namespace choir::test
