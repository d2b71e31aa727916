#pragma once
// Embedding forward and backward against the reference, on any device.
#include "kernels/embedding/embedding.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

struct EmbeddingCase {
  DType dtype;
  std::int64_t rows, tokens, vocabulary, width;
  bool positions;
  HostTensor ids = HostTensor::integers({rows}, 1, vocabulary);
  int skew = 0;
  std::int64_t first = 4;  ///< position
  std::int64_t end = ops::kNoPositionEnd;
  bool accumulate = false;
  std::int64_t on_device = 0;  ///< the part of `first` that only the device has

  void check(Device& device) const {
    SCOPED_TRACE(fmt::format("{} {} rows of {}, {} ids, {} tokens, positions {} skew {}",
                             name_of(dtype), rows, width, vocabulary, tokens, positions, skew));
    const Stream stream(device);
    const std::int64_t learned_rows = std::min(tokens + first, end);
    const HostTensor table = HostTensor::normal(dtype, {vocabulary, width}, 2);
    const HostTensor learned = HostTensor::normal(dtype, {learned_rows, width}, 3);
    HostTensor out =
        accumulate ? HostTensor::normal(dtype, {rows, width}, 7) : HostTensor(dtype, {rows, width});
    HostTensor exact = out.to(DType::f64);
    {
      Mirror mirror(device);
      ops::EmbeddingForward f;
      f.ids = mirror.in(ids), f.table = mirror.in(table, skew), f.out = mirror.io(out, skew);
      f.tokens = tokens, f.first_position = first, f.position_end = end;
      f.accumulate = accumulate;
      if (positions) f.positions = mirror.in(learned, skew);
      const HostTensor further =
          HostTensor::filled(DType::i32, {1}, static_cast<double>(on_device));
      if (on_device > 0) {
        f.first_position -= on_device;
        f.first_position_on_device = mirror.in(further).as<std::int32_t>();
      }
      ops::embedding_forward(stream, f);
      mirror.fetch();
    }
    const HostTensor table64 = table.to(DType::f64), learned64 = learned.to(DType::f64);
    ref::embedding_forward({.ids = ids,
                            .table = table64,
                            .positions = positions ? learned64.view() : TensorView{},
                            .tokens = tokens,
                            .first_position = first,
                            .out = exact,
                            .position_end = end,
                            .accumulate = accumulate});
    // One sum, or one after a sum of numbers below 5.
    const double before = accumulate && positions ? 10 * operation_roundoff(dtype) : 0;
    expect_close(out, exact, operation_roundoff(dtype), before, "embedding");

    const DType sums = sum_dtype(dtype);
    const HostTensor d_out = HostTensor::normal(dtype, {rows, width}, 4),
                     d_out64 = d_out.to(DType::f64);
    HostTensor d_table = HostTensor::normal(sums, {vocabulary, width}, 5);
    HostTensor d_positions = HostTensor::normal(sums, {learned_rows, width}, 6);
    HostTensor d_table64 = d_table.to(DType::f64), d_positions64 = d_positions.to(DType::f64);
    HostTensor again = d_table, again_positions = d_positions, beside_frozen = d_positions;
    for (const bool repeat : {false, true}) {
      Mirror mirror(device);
      ops::EmbeddingBackward b;
      b.ids = mirror.in(ids), b.d_out = mirror.in(d_out, skew), b.tokens = tokens;
      b.first_position = first, b.position_end = end;
      b.d_table = mirror.io(repeat ? again : d_table, skew);
      if (positions) b.d_positions = mirror.io(repeat ? again_positions : d_positions, skew);
      b.workspace = mirror.workspace(ops::embedding_workspace(stream, rows, vocabulary, width));
      ops::embedding_backward(stream, b);
      mirror.fetch();
    }
    if (positions) {
      Mirror mirror(device);
      ops::embedding_backward(
          stream, {.ids = mirror.in(ids),
                   .d_out = mirror.in(d_out, skew),
                   .d_table = {},
                   .d_positions = mirror.io(beside_frozen, skew),
                   .tokens = tokens,
                   .workspace = mirror.workspace(ops::embedding_workspace(stream, rows, 1, width)),
                   .first_position = first,
                   .position_end = end});
      mirror.fetch();
      EXPECT_TRUE(beside_frozen.same_bits(d_positions)) << "without a table";
    }
    ops::EmbeddingBackward e;
    e.ids = ids, e.d_out = d_out64, e.d_table = d_table64, e.tokens = tokens;
    e.first_position = first, e.position_end = end;
    if (positions) e.d_positions = d_positions64;
    ref::embedding_backward(e);
    // Numbers below 5: n additions, each rounding a partial sum below 5 n.
    const auto bound = [&](std::int64_t n) {
      const auto terms = static_cast<double>(n + 1);
      return 5 * terms * terms * unit_roundoff(sums);
    };
    expect_close(d_table, d_table64, 0, bound(most_of_one_id()), "d_table");
    expect_close(d_positions, d_positions64, 0, bound((rows + tokens - 1) / tokens), "d_positions");
    EXPECT_TRUE(again.same_bits(d_table) && again_positions.same_bits(d_positions));
  }

 private:
  std::int64_t most_of_one_id() const {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(vocabulary));
    for (std::int64_t r = 0; r < rows; ++r) ++counts[static_cast<std::size_t>(ids[r])];
    return *std::max_element(counts.begin(), counts.end());
  }
};

}  // namespace choir::test
