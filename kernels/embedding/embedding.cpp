#include "kernels/embedding/embedding.hpp"

#include <algorithm>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

void check_ids(const TensorView& ids, std::int64_t rows_of_table, std::int64_t vocabulary,
               bool spliced) {
  if (ids.count() == 0) return;
  const std::int64_t all = vocabulary > 0 ? vocabulary : rows_of_table;
  const auto range = cpu::id_range(ids);
  CHOIR_CHECK((spliced || range.lowest >= 0) && range.highest < all,
              "token ids from {} to {} for a table of {} rows", range.lowest, range.highest, all);
}

std::int64_t positions_read(std::int64_t rows, std::int64_t tokens) {
  return rows < tokens ? rows : tokens;
}

void check_positions(std::int64_t tokens, std::int64_t first, std::int64_t end) {
  CHOIR_CHECK(tokens >= 1 && first >= 0 && end >= 1, "{} tokens from position {}, real before {}",
              tokens, first, end);
}

}  // namespace

std::int64_t embedding_workspace(const Stream& stream, std::int64_t rows, std::int64_t vocabulary,
                                 std::int64_t width) {
  if (stream.device().plans_for() != DeviceKind::cuda) return 0;
  return EmbeddingPlan(rows, vocabulary, width).bytes;
}

void embedding_forward(const Stream& stream, const EmbeddingForward& args) {
  const DType dtype = args.table.dtype;
  const std::int64_t rows = args.ids.count(), width = args.table.shape.back();
  check_tensor(args.ids, DType::i32, rows, "ids");
  check_tensor(args.table, dtype, args.table.count(), "table");
  check_tensor(args.out, dtype, rows * width, "out");
  check_positions(args.tokens, args.first_position, args.position_end);
  if (!args.positions.empty()) {
    const std::int64_t needed =
        std::min(args.first_position + positions_read(rows, args.tokens), args.position_end);
    check_tensor(args.positions, dtype, args.positions.count(), "positions");
    CHOIR_CHECK(args.positions.shape.back() == width && args.positions.shape.rows() >= needed,
                "positions are {}: {} rows of {} needed", to_string(args.positions.shape), needed,
                width);
  }
  const double terms = (args.positions.empty() ? 1 : 2) + (args.accumulate ? 1 : 0);
  stream.count((terms - 1) * static_cast<double>(rows * width),
               (terms + 1) * as_bytes(args.out) + as_bytes(args.ids));
  if (on_cuda(stream)) return cuda::embedding_forward(stream, args);
  if (!computes(stream)) return;
  CHOIR_CHECK(!args.first_position_on_device,
              "a position in device memory is for the CUDA device only");
  check_ids(args.ids, args.table.shape.rows(), args.vocabulary, args.spliced);
  with_element(dtype, [&](auto t) { cpu::embedding_forward<decltype(t)>(args); });
}

void embedding_backward(const Stream& stream, const EmbeddingBackward& args) {
  const DType dtype = args.d_out.dtype, sums = sum_dtype_of(dtype);
  const std::int64_t rows = args.ids.count(), width = args.d_out.shape.back();
  check_tensor(args.ids, DType::i32, rows, "ids");
  check_tensor(args.d_out, dtype, rows * width, "d_out");
  const bool table = !args.d_table.empty();
  if (table) {
    check_tensor(args.d_table, sums, args.d_table.count(), "d_table");
    CHOIR_CHECK(args.d_table.shape.back() == width, "d_table is {}", to_string(args.d_table.shape));
  }
  check_positions(args.tokens, args.first_position, args.position_end);
  if (!args.d_positions.empty()) {
    check_tensor(args.d_positions, sums, args.d_positions.count(), "d_positions");
    CHOIR_CHECK(args.d_positions.shape.back() == width &&
                    args.d_positions.shape.rows() >=
                        std::min(args.first_position + positions_read(rows, args.tokens),
                                 args.position_end),
                "d_positions is {}", to_string(args.d_positions.shape));
  }
  check_workspace(args.workspace,
                  embedding_workspace(stream, rows, table ? args.d_table.shape.rows() : 1, width));
  const double n = static_cast<double>(rows * width);
  const double tables = (table ? 1 : 0) + (args.d_positions.empty() ? 0 : 1);
  stream.count(tables * n,
               as_bytes(args.d_out) + 2 * tables * n * static_cast<double>(size_of(sums)));
  if (on_cuda(stream)) return cuda::embedding_backward(stream, args);
  if (!computes(stream)) return;
  if (table) check_ids(args.ids, args.d_table.shape.rows(), args.vocabulary, args.spliced);
  with_element(dtype, [&](auto t) { cpu::embedding_backward<decltype(t)>(args); });
}

}  // namespace choir::ops

namespace choir::cpu {

IdRange id_range(const TensorView& ids) {
  const auto* id = static_cast<const std::int32_t*>(ids.data);
  std::int32_t lowest = INT32_MAX, highest = INT32_MIN;
#pragma omp simd reduction(min : lowest) reduction(max : highest)
  for (std::int64_t i = 0; i < ids.count(); ++i) {
    lowest = id[i] < lowest ? id[i] : lowest;
    highest = id[i] > highest ? id[i] : highest;
  }
  return {lowest, highest};
}

namespace {

/// y += x, if x is not nullptr.
template <class T>
void add_row(const T* x, std::int64_t width, T* y) {
  if (x == nullptr) return;
  for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
    access.store(y + c, access.load(y + c) + access.load(x + c));
  });
}

}  // namespace

template <class T>
void embedding_forward(const ops::EmbeddingForward& args) {
  const std::int64_t width = args.table.shape.back(), table_rows = args.table.shape.rows();
  const auto* ids = static_cast<const std::int32_t*>(args.ids.data);
  const auto* table = static_cast<const T*>(args.table.data);
  const auto* positions = static_cast<const T*>(args.positions.data);
  auto* out = static_cast<T*>(args.out.data);
  parallel_ranges(args.ids.count(), width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t id = ids[r] - args.first_id;
      const bool mine = id >= 0 && id < table_rows;
      T* y = out + r * width;
      const auto bytes = static_cast<std::size_t>(width) * sizeof(T);
      const std::int64_t row =
          ops::table_row(args.first_position + r % args.tokens, args.position_end);
      const T* position = positions == nullptr ? nullptr : positions + row * width;
      const T* token = mine ? table + id * width : nullptr;
      if (args.accumulate) {
        add_row(token, width, y);
        add_row(position, width, y);
        continue;
      }
      if (!mine && position == nullptr) {
        std::memset(static_cast<void*>(y), 0, bytes);
        continue;
      }
      if (token == nullptr || position == nullptr) {
        std::memcpy(static_cast<void*>(y), token == nullptr ? position : token, bytes);
        continue;
      }
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        access.store(y + c, access.load(token + c) + access.load(position + c));
      });
    }
  });
}

template <class T>
void embedding_backward(const ops::EmbeddingBackward& args) {
  const std::int64_t width = args.d_out.shape.back(), rows = args.ids.count();
  const std::int64_t table_rows = args.d_table.empty() ? 0 : args.d_table.shape.rows();
  const auto* ids = static_cast<const std::int32_t*>(args.ids.data);
  const auto* d_out = static_cast<const T*>(args.d_out.data);
  auto* d_table = static_cast<Sum<T>*>(args.d_table.data);
  auto* d_positions = static_cast<Sum<T>*>(args.d_positions.data);
  constexpr std::int64_t kColumns = 16;  // a cache line of f32
  const std::int64_t groups = (width + kColumns - 1) / kColumns;
  const std::int64_t real =
      d_positions ? ops::real_positions(args.first_position, args.tokens, args.position_end) : 0;
  if (real > 0) d_positions += args.first_position * width;
  parallel_ranges(groups, kColumns * rows, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * kColumns;
    const std::int64_t end = last * kColumns < width ? last * kColumns : width;
    std::int64_t token_index = 0;  // r % tokens, computed without a division
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* dy = d_out + r * width;
      const std::int64_t id = ids[r] - args.first_id;
      Sum<T>* token = id >= 0 && id < table_rows ? d_table + id * width : nullptr;
      Sum<T>* position = token_index < real ? d_positions + token_index * width : nullptr;
      if (++token_index == args.tokens) token_index = 0;
      for_vectors<T>(begin, end, [&](std::int64_t c, auto access) {
        const Vec<T> g = access.load(dy + c);
        if (token) access.store(token + c, access.load(token + c) + g);
        if (position) access.store(position + c, access.load(position + c) + g);
      });
    }
  });
}

#define CHOIR_INSTANTIATE(T)                                        \
  template void embedding_forward<T>(const ops::EmbeddingForward&); \
  template void embedding_backward<T>(const ops::EmbeddingBackward&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu

namespace choir::ref {

void embedding_forward(const ops::EmbeddingForward& args) {
  const std::int64_t width = args.table.shape.back();
  for (std::int64_t r = 0; r < args.ids.count(); ++r)
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int64_t id = args.ids.as<std::int32_t>()[r] - args.first_id;
      const bool here = id >= 0 && id < args.table.shape.rows();
      double value = here ? args.table.as<double>()[id * width + c] : 0.0;
      std::int64_t position = args.first_position + r % args.tokens;
      if (position >= args.position_end) position = args.position_end - 1;
      if (!args.positions.empty()) value += args.positions.as<double>()[position * width + c];
      double& out = args.out.as<double>()[r * width + c];
      out = args.accumulate ? out + value : value;
    }
}

void embedding_backward(const ops::EmbeddingBackward& args) {
  const std::int64_t width = args.d_out.shape.back();
  for (std::int64_t r = 0; r < args.ids.count(); ++r)
    for (std::int64_t c = 0; c < width; ++c) {
      const double g = args.d_out.as<double>()[r * width + c];
      const std::int64_t id = args.ids.as<std::int32_t>()[r] - args.first_id;
      if (id >= 0 && id < args.d_table.shape.rows()) args.d_table.as<double>()[id * width + c] += g;
      const std::int64_t position = args.first_position + r % args.tokens;
      if (!args.d_positions.empty() && position < args.position_end)
        args.d_positions.as<double>()[position * width + c] += g;
    }
}

}  // namespace choir::ref
