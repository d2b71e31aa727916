#pragma once
// Division of counts into chunks. It is needed because MPI counts are int and because large
// reductions are faster in chunks that fit the cache. The functions are pure, and the chunk size is
// always an argument, so that tests can make it tiny.
#include <algorithm>
#include <cstddef>

namespace choir {

struct Chunk {
  std::size_t offset = 0;
  std::size_t count = 0;
};

/// Number of chunks of at most `limit` elements (at least 1) that cover `count`; 0 if `count` is 0.
inline std::size_t chunk_count(std::size_t count, std::size_t limit) {
  limit = std::max<std::size_t>(limit, 1);
  return count / limit + (count % limit != 0 ? 1 : 0);
}
/// Chunk `index`; all but the last have `limit` elements.
inline Chunk chunk_at(std::size_t index, std::size_t count, std::size_t limit) {
  limit = std::max<std::size_t>(limit, 1);
  const std::size_t offset = index * limit;
  return {offset, std::min(limit, count - offset)};
}

/// Share `part` of `parts` of `count` elements. Shares are contiguous and in order, each but the
/// last is a multiple of `granule` (so that no two share a cache line), and later shares may be
/// empty.
inline Chunk share_of(std::size_t count, int parts, int part, std::size_t granule) {
  const auto n = static_cast<std::size_t>(parts);
  const std::size_t each = chunk_count(chunk_count(count, n), granule) * granule;
  const std::size_t from = std::min(count, each * static_cast<std::size_t>(part));
  return {from, std::min(each, count - from)};
}

/// Calls f(offset, count) for each chunk, in order.
template <class F>
void for_each_chunk(std::size_t count, std::size_t limit, F&& f) {
  const std::size_t pieces = chunk_count(count, limit);
  for (std::size_t i = 0; i < pieces; ++i) {
    const Chunk piece = chunk_at(i, count, limit);
    f(piece.offset, piece.count);
  }
}

/// The address `offset` bytes after `data`.
inline std::byte* at(void* data, std::size_t offset) {
  return static_cast<std::byte*>(data) + offset;
}
inline const std::byte* at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

}  // namespace choir
