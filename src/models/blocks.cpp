#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "choir/models/blocks.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

/// Tensors of a bucket in the order of the model: its own parameters, frozen ones and tiles.
std::vector<const Parameter*> tensors_of(const Bucket& bucket, const ParameterSet& parameters) {
  const std::string inside = bucket.name + ".";
  std::vector<const Parameter*> tensors(bucket.parameters.begin(), bucket.parameters.end());
  for (const Parameter* p : parameters.all())
    if ((p->shard.tiles > 1 || !p->trainable) && p->name.starts_with(inside) &&
        std::find(tensors.begin(), tensors.end(), p) == tensors.end())
      tensors.push_back(p);
  std::stable_sort(tensors.begin(), tensors.end(), [](const Parameter* a, const Parameter* b) {
    return a->position < b->position;
  });
  return tensors;
}

}  // namespace

std::string parameter_table(const ParameterSet& parameters, const std::vector<AlikeBlocks>& blocks,
                            int width, const std::function<std::string(const Parameter&)>& note) {
  std::string text;
  for (const Bucket* bucket : parameters.model_buckets()) {
    if (bucket->tile > 0) continue;  // its tensors are listed with the first tile
    const auto alike = std::ranges::find_if(
        blocks, [&](const AlikeBlocks& kind) { return bucket->name.starts_with(kind.name + "."); });
    const bool block = alike != blocks.end();
    if (block && bucket->name != alike->name + ".0") continue;
    const std::vector<const Parameter*> tensors = tensors_of(*bucket, parameters);
    std::int64_t count = 0;
    for (const Parameter* p : tensors) count += p->count();
    text += fmt::format(
        "  {:<34} {:>14} parameters{}\n", bucket->name, format_count(count),
        block && alike->layers > 1 ? fmt::format(" (and {} alike)", alike->layers - 1) : "");
    for (const Parameter* p : tensors)
      text += fmt::format("    {:<{}} {:>14}  {}{}\n", p->name, width, to_string(p->shape),
                          p->decay ? "decay" : "", note ? note(*p) : "");
  }
  return text;
}

}  // namespace choir
