#include "choir/nn/parameter.hpp"

#include <algorithm>

namespace choir {
namespace {

/// A section as one rank holds it, in extents along the split dim.
struct Cut {
  std::int64_t first = 0;   ///< in the logical dim
  std::int64_t count = 0;   ///< without padding
  std::int64_t padded = 0;  ///< with padding: the extent of the local dim
  bool owned = true;
  std::int64_t part = 0, parts = 1;
};

/// An extent of `n` with its padding (see ShardSpec::alignment).
std::int64_t padded_extent(std::int64_t n, std::int64_t alignment) {
  std::int64_t unit = alignment;
  while (unit > ShardSpec::kLeastAlignment && 16 * (round_up(n, unit) - n) > n) unit /= 2;
  return round_up(n, unit);
}

Cut cut_for_rank(const Section& section, std::int64_t alignment, const TensorSplit& split) {
  const std::int64_t ranks = split.ranks, rank = split.rank, extent = section.extent;
  if (alignment > 0) {
    const std::int64_t each = padded_extent((extent + ranks - 1) / ranks, alignment);
    const std::int64_t first = std::min(extent, rank * each);
    return {first, std::min(extent - first, each), each, true, rank, ranks};
  }
  if (ranks == 1) return {0, extent, extent, true, 0, 1};
  const bool copied = section.parts > 0 && section.parts < ranks;
  const std::int64_t parts = copied ? section.parts : ranks;
  CHOIR_CHECK(ranks % parts == 0 && extent % parts == 0 &&
                  (section.parts == 0 || section.parts % parts == 0),
              "a section of {} in {} parts for {} ranks", extent, section.parts, ranks);
  const std::int64_t copies = ranks / parts, each = extent / parts;
  return {rank / copies * each, each, each, rank % copies == 0, rank / copies, parts};
}

Cut cut_section(const Section& section, const ShardSpec& spec, const TensorSplit& split) {
  Cut cut = cut_for_rank(section, spec.alignment, split);
  if (spec.tiles == 1) return cut;
  CHOIR_CHECK(spec.alignment == 0 && cut.count % spec.tiles == 0,
              "a rank's {} of a section of {} in {} tiles", cut.count, section.extent, spec.tiles);
  cut.count = cut.padded = cut.count / spec.tiles;
  cut.first += spec.tile * cut.count;
  return cut;
}

std::vector<Section> sections_of(const Shape& logical, const ShardSpec& spec) {
  if (!spec.sections.empty()) return spec.sections;
  return {{.extent = logical[spec.split_dim], .parts = 0}};
}

std::int64_t product(const Shape& shape, int first, int last) {
  std::int64_t n = 1;
  for (int d = first; d < last; ++d) n *= shape[d];
  return n;
}

/// The number of local elements if this rank owns all of them without padding, else 0. A division
/// along columns has one run per row, which are millions in a large model.
std::int64_t owned_without_gaps(const Parameter& p, const TensorSplit& split) {
  if (p.shard.split_dim < 0) return 0;
  std::int64_t count = 0;
  for (const Section& section : sections_of(p.shape, p.shard)) {
    const Cut cut = cut_section(section, p.shard, split);
    if (!cut.owned || cut.count != cut.padded) return 0;
    count += cut.count;
  }
  return p.shape.count() / p.shape[p.shard.split_dim] * count;
}

}  // namespace

Shape local_shape(const Shape& logical, const ShardSpec& spec, const TensorSplit& split) {
  Shape shape = logical;
  CHOIR_CHECK(spec.tiles == 1 || spec.split_dim >= 0, "tiles along no dim");
  if (spec.split_dim < 0) {
    if (spec.alignment > 0) shape[0] = padded_extent(shape[0], spec.alignment);
    return shape;
  }
  std::int64_t sum = 0, whole = 0;
  for (const Section& section : sections_of(logical, spec)) {
    sum += cut_section(section, spec, split).padded;
    whole += section.extent;
  }
  CHOIR_CHECK(whole == logical[spec.split_dim], "sections of {} in a dim of {}", whole,
              logical[spec.split_dim]);
  shape[spec.split_dim] = sum;
  return shape;
}

std::vector<ShardRun> shard_runs(const Shape& logical, const ShardSpec& spec,
                                 const TensorSplit& split) {
  if (spec.split_dim < 0) return {{0, 0, logical.count(), split.rank == 0}};
  const std::vector<Section> sections = sections_of(logical, spec);
  const std::int64_t outer = product(logical, 0, spec.split_dim);
  const std::int64_t inner = product(logical, spec.split_dim + 1, logical.rank());
  std::vector<Cut> cuts;
  for (const Section& section : sections) cuts.push_back(cut_section(section, spec, split));
  std::vector<ShardRun> runs;
  runs.reserve(static_cast<std::size_t>(outer) * sections.size());
  std::int64_t local = 0;
  for (std::int64_t o = 0; o < outer; ++o) {
    std::int64_t before = o * logical[spec.split_dim];
    for (std::size_t s = 0; s < sections.size(); ++s) {
      const Cut& cut = cuts[s];
      if (cut.count > 0)
        runs.push_back({(before + cut.first) * inner, local, cut.count * inner, cut.owned});
      local += cut.padded * inner;
      before += sections[s].extent;
    }
  }
  return runs;
}

std::vector<ShardRun> joined_runs(const Parameter& p) {
  std::vector<ShardRun> joined;
  for (const ShardRun& run : shard_runs(p)) {
    ShardRun* const last = joined.empty() ? nullptr : &joined.back();
    if (last != nullptr && last->logical + last->count == run.logical &&
        last->local + last->count == run.local)
      last->count += run.count;
    else
      joined.push_back(run);
  }
  return joined;
}

std::vector<LocalRange> owned_ranges(const Parameter& p, int rank) {
  TensorSplit split = p.split;
  split.rank = rank;
  if (const std::int64_t whole = owned_without_gaps(p, split)) return {{0, whole}};
  std::vector<LocalRange> ranges;
  for (const ShardRun& run : shard_runs(p.shape, p.shard, split)) {
    if (!run.owned) continue;
    if (!ranges.empty() && ranges.back().first + ranges.back().count == run.local)
      ranges.back().count += run.count;
    else
      ranges.push_back({run.local, run.count});
  }
  return ranges;
}

std::vector<PartialRun> partial_runs(const Parameter& p) {
  if (p.split.ranks == 1) return {};
  const auto& partial = p.shard.partial;
  const bool whole = std::find(partial.begin(), partial.end(), Axis::tensor) != partial.end();
  if (p.shard.split_dim < 0)
    return whole ? std::vector<PartialRun>{{0, p.count(), 0, p.count()}}
                 : std::vector<PartialRun>{};
  CHOIR_CHECK(!whole, "'{}' is cut along an axis and partial along it", p.name);
  std::vector<PartialRun> runs;
  const std::int64_t inner = product(p.shape, p.shard.split_dim + 1, p.shape.rank());
  std::int64_t local = 0;
  for (const Section& section : sections_of(p.shape, p.shard)) {
    const Cut cut = cut_section(section, p.shard, p.split);
    if (cut.parts < p.split.ranks) {
      CHOIR_CHECK(product(p.shape, 0, p.shard.split_dim) == 1, "copies of columns of '{}'", p.name);
      runs.push_back(
          {local, cut.count * inner, cut.part * cut.count * inner, cut.parts * cut.count * inner});
    }
    local += cut.padded * inner;
  }
  return runs;
}

}  // namespace choir
