#pragma once
// The one place where a count is cut into pieces, because MPI counts are int and big reductions are
// faster in cache-sized pieces. The functions are pure, and the piece size is always an argument,
// so that tests can make it tiny.
#include <algorithm>
#include <cstddef>

namespace choir {

struct Chunk {
  std::size_t offset = 0;
  std::size_t count = 0;
};

/// How many pieces of at most `limit` (taken as at least 1) cover `count`; 0 for nothing.
inline std::size_t chunk_count(std::size_t count, std::size_t limit) {
  limit = std::max<std::size_t>(limit, 1);
  return count / limit + (count % limit != 0 ? 1 : 0);
}
/// Piece `index`; all but the last have `limit` elements.
inline Chunk chunk_at(std::size_t index, std::size_t count, std::size_t limit) {
  limit = std::max<std::size_t>(limit, 1);
  const std::size_t offset = index * limit;
  return {offset, std::min(limit, count - offset)};
}

/// Share `part` of `parts` of `count` elements: contiguous, in order, each but the last a multiple
/// of `granule` (so that no two parts share a cache line); later parts may be empty.
inline Chunk share_of(std::size_t count, int parts, int part, std::size_t granule) {
  const auto n = static_cast<std::size_t>(parts);
  const std::size_t each = chunk_count(chunk_count(count, n), granule) * granule;
  const std::size_t from = std::min(count, each * static_cast<std::size_t>(part));
  return {from, std::min(each, count - from)};
}

/// Calls f(offset, count) for each piece, in order.
template <class F>
void for_each_chunk(std::size_t count, std::size_t limit, F&& f) {
  const std::size_t pieces = chunk_count(count, limit);
  for (std::size_t i = 0; i < pieces; ++i) {
    const Chunk piece = chunk_at(i, count, limit);
    f(piece.offset, piece.count);
  }
}

/// The place `offset` bytes behind `data`.
inline std::byte* at(void* data, std::size_t offset) {
  return static_cast<std::byte*>(data) + offset;
}
inline const std::byte* at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

}  // namespace choir
