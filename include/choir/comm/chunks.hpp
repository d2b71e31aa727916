#pragma once
// The one place where a count is cut into pieces: MPI counts are int, and big reductions are faster
// in cache-sized pieces. Pure functions; the piece size is always an argument, so tests can make it
// tiny.
#include <algorithm>
#include <cstddef>

namespace choir {

struct Chunk {
  std::size_t offset = 0;
  std::size_t count = 0;
};

/// How many pieces of at most `limit` (taken as at least 1) cover `count`; 0 for nothing.
std::size_t chunk_count(std::size_t count, std::size_t limit);
/// Piece `index`; all but the last have `limit` elements.
Chunk chunk_at(std::size_t index, std::size_t count, std::size_t limit);

/// Share `part` of `parts` of `count` elements: contiguous, in order, each but the last a multiple
/// of `granule` (so that no two parts share a cache line); later parts may be empty.
Chunk share_of(std::size_t count, int parts, int part, std::size_t granule);

/// Calls f(offset, count) for each piece, in order.
template <class F>
void for_each_chunk(std::size_t count, std::size_t limit, F&& f) {
  const std::size_t pieces = chunk_count(count, limit);
  for (std::size_t i = 0; i < pieces; ++i) {
    const Chunk piece = chunk_at(i, count, limit);
    f(piece.offset, piece.count);
  }
}

}  // namespace choir
