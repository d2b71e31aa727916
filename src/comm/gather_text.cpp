#include "choir/comm/gather_text.hpp"

namespace choir {

std::vector<std::string> gather_texts(Communicator& comm, const std::string& mine) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto bytes = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> sizes(ranks, 0), units(ranks, sizeof bytes), offsets(ranks);
  for (std::size_t r = 0; r < ranks; ++r) offsets[r] = static_cast<std::int64_t>(r * sizeof bytes);
  comm.gather(&bytes, sizeof bytes, sizes.data(), units.data(), offsets.data(), 0);
  std::int64_t total = 0;
  for (std::size_t r = 0; r < ranks; ++r) offsets[r] = total, total += sizes[r];
  std::string all(static_cast<std::size_t>(total), '\0');
  comm.gather(mine.data(), mine.size(), all.data(), sizes.data(), offsets.data(), 0);
  std::vector<std::string> texts;
  if (comm.rank() != 0) return texts;
  for (std::size_t r = 0; r < ranks; ++r)
    texts.push_back(
        all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(sizes[r])));
  return texts;
}

void broadcast_text(Communicator& comm, std::string& text, int root) {
  std::uint64_t bytes = text.size();
  comm.broadcast(&bytes, sizeof bytes, root);
  text.resize(bytes);
  if (bytes > 0) comm.broadcast(text.data(), bytes, root);
}

}  // namespace choir
