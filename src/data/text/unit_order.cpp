#include "src/data/text/unit_order.hpp"

#include <algorithm>
#include <numeric>

#include "choir/core/error.hpp"
#include "src/data/sampling/permutation.hpp"

namespace choir {

UnitOrder::UnitOrder(std::vector<std::int64_t> tokens_of_units, std::int64_t block_size,
                     std::uint64_t seed)
    : tokens_(std::move(tokens_of_units)),
      block_size_(block_size),
      key_(philox_key(seed, "data.units")) {
  const std::int64_t all = std::accumulate(tokens_.begin(), tokens_.end(), std::int64_t{0});
  if (all < block_size + 1)
    throw DataError(
        fmt::format("{} tokens are fewer than a window of {} and its last target", all, block_size),
        "use more text or a smaller model.block_size");
  windows_ = (all - 1) / block_size;
}

std::size_t UnitOrder::unit_at(std::int64_t place) const {
  const std::int64_t epoch = place / units(), number = place % units();
  const Permutation order(static_cast<std::uint64_t>(units()), key_,
                          static_cast<std::uint64_t>(epoch));
  return static_cast<std::size_t>(order(static_cast<std::uint64_t>(number)));
}

const std::vector<std::int64_t>& UnitOrder::begins_of(std::int64_t epoch) {
  std::vector<std::int64_t>& begins = begins_[epoch];
  if (!begins.empty()) return begins;
  begins.push_back(0);
  for (std::int64_t number = 0; number < units(); ++number)
    begins.push_back(begins.back() + tokens_[unit_at(epoch * units() + number)]);
  begins_.erase(begins_.begin(), begins_.lower_bound(epoch - 1));
  return begins;
}

std::vector<UnitOrder::Segment> UnitOrder::segments(std::int64_t first, std::int64_t count) {
  std::vector<Segment> made;
  for (std::int64_t sample = first; sample < first + count;) {
    const std::int64_t epoch = sample / windows_, window = sample % windows_;
    Segment segment{sample, std::min(first + count - sample, windows_ - window), {}};
    const std::vector<std::int64_t>& begins = begins_of(epoch);
    std::int64_t at = window * block_size_;
    const std::int64_t end = at + segment.samples * block_size_ + 1;
    auto behind = std::upper_bound(begins.begin(), begins.end(), at);
    for (; at < end; ++behind) {
      const std::int64_t number = behind - begins.begin() - 1, begin = *(behind - 1);
      const std::int64_t here = std::min(end, *behind) - at;
      if (here > 0) segment.pieces.push_back({epoch * units() + number, at - begin, here});
      at += std::max<std::int64_t>(here, 0);
    }
    sample += segment.samples;
    made.push_back(std::move(segment));
  }
  return made;
}

}  // namespace choir
