#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "choir/models/blocks.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"

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

/// The stack that a bucket belongs to; nullptr: none.
const std::string* stack_of(const Bucket& bucket, const std::vector<std::string>& stacks) {
  const auto found = std::ranges::find_if(
      stacks, [&](const std::string& name) { return bucket.name.starts_with(name + "."); });
  return found == stacks.end() ? nullptr : &*found;
}

/// The stack of a block and its tensors, without the number of the layer.
std::string kind_text(const std::string& stack, const std::vector<const Parameter*>& tensors,
                      const Bucket& bucket) {
  std::string text = stack;
  for (const Parameter* p : tensors)
    text +=
        fmt::format("|{} {} {}", p->name.substr(bucket.name.size()), to_string(p->shape), p->decay);
  return text;
}

}  // namespace

std::string parameter_table(const ParameterSet& parameters, const std::vector<std::string>& stacks,
                            int width, const std::function<std::string(const Parameter&)>& note) {
  struct Line {
    const Bucket* bucket;
    std::vector<const Parameter*> tensors;
    std::vector<std::string> alike{};
  };
  std::vector<Line> lines;
  std::map<std::string, std::size_t> kinds;  // of blocks, with the line of the first
  std::map<std::string, int> kinds_of_stack;
  for (const Bucket* bucket : parameters.model_buckets()) {
    if (bucket->tile > 0) continue;  // its tensors are listed with the first tile
    std::vector<const Parameter*> tensors = tensors_of(*bucket, parameters);
    if (const std::string* stack = stack_of(*bucket, stacks)) {
      const auto [kind, first] = kinds.emplace(kind_text(*stack, tensors, *bucket), lines.size());
      if (!first) {
        lines[kind->second].alike.push_back(bucket->name.substr(stack->size() + 1));
        continue;
      }
      ++kinds_of_stack[*stack];
    }
    lines.push_back({bucket, std::move(tensors)});
  }
  std::string text;
  for (const Line& line : lines) {
    std::int64_t count = 0;
    for (const Parameter* p : line.tensors) count += p->count();
    const std::string* stack = stack_of(*line.bucket, stacks);
    const bool mixed = stack != nullptr && kinds_of_stack[*stack] > 1;
    std::string alike;
    if (!line.alike.empty())
      alike = fmt::format(" (and {} alike{}{})", line.alike.size(), mixed ? ": " : "",
                          mixed ? join(line.alike, ", ") : "");
    text += fmt::format("  {:<34} {:>14} parameters{}\n", line.bucket->name, format_count(count),
                        alike);
    for (const Parameter* p : line.tensors)
      text += fmt::format("    {:<{}} {:>14}  {}{}\n", p->name, width, to_string(p->shape),
                          p->decay ? "decay" : "", note ? note(*p) : "");
  }
  return text;
}

}  // namespace choir
