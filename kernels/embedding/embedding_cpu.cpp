#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/embedding/embedding.hpp"

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
