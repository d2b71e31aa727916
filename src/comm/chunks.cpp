#include "choir/comm/chunks.hpp"

namespace choir {

std::size_t chunk_count(std::size_t count, std::size_t limit) {
  limit = std::max<std::size_t>(limit, 1);
  return count / limit + (count % limit != 0 ? 1 : 0);
}

Chunk chunk_at(std::size_t index, std::size_t count, std::size_t limit) {
  limit = std::max<std::size_t>(limit, 1);
  const std::size_t offset = index * limit;
  return {offset, std::min(limit, count - offset)};
}

Chunk share_of(std::size_t count, int parts, int part, std::size_t granule) {
  const auto n = static_cast<std::size_t>(parts);
  const std::size_t each = chunk_count(chunk_count(count, n), granule) * granule;
  const std::size_t from = std::min(count, each * static_cast<std::size_t>(part));
  return {from, std::min(each, count - from)};
}

}  // namespace choir
