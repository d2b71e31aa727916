#include "ladder_reason.hpp"

#include <fmt/core.h>

#include <vector>

#include "choir/core/clock.hpp"
#include "choir/core/text.hpp"
#include "choir/train/log/layout_report.hpp"

namespace choir {
namespace {

std::string division(const LayoutPlan& plan) {
  const Layout& layout = plan.layout;
  std::vector<std::string> parts;
  if (const int t = layout.size(Axis::tensor); t > 1) {
    const bool far = groups_across_nodes(layout, Axis::tensor,
                                         nodes_of_ranks(layout.ranks(), plan.ranks_per_node)) > 0;
    parts.push_back(fmt::format("layers divided among {} ranks {}", t,
                                far ? "of several nodes, so every layer waits for the network"
                                    : "of one node, which talk in every layer"));
  }
  if (const int c = layout.size(Axis::context); c > 1)
    parts.push_back(fmt::format("sequences divided among {} ranks", c));
  if (const int p = layout.size(Axis::pipeline); p > 1)
    parts.push_back(
        fmt::format("layers in {} stages, idle {:.1f} % of the time", p, 100 * plan.bubble));
  if (!parts.empty()) return join(parts, "; ");
  if (layout.ranks() == 1) return "one rank holds everything";
  return plan.deck.parallel.zero == 0 ? "every rank holds everything, only gradients travel" : "";
}

std::string sharing(const LayoutPlan& plan) {
  const int ranks = plan.layout.size(Axis::data);
  const std::int64_t passes = plan.batch.accum;
  switch (plan.deck.parallel.zero) {
    case 1:
      return fmt::format("moments spread over {} ranks, for the bytes of plain data parallelism",
                         ranks);
    case 2:
      return fmt::format("moments and gradients spread over {} ranks, gradients sent {}", ranks,
                         passes == 1 ? "once" : fmt::format("{} times a step", passes));
    case 3:
      return fmt::format(
          "moments, gradients and parameters spread over {} ranks, parameters "
          "gathered {} times a step",
          ranks, 2 * passes);
    default:
      return {};
  }
}

std::string need_of(const LayoutPlan& plan, const LayoutPlan& too_large) {
  std::string what = "less of it";
  if (too_large.deck.parallel.zero != plan.deck.parallel.zero)
    what = fmt::format("zero={}", too_large.deck.parallel.zero);
  if (too_large.deck.train.recompute != plan.deck.train.recompute)
    what = fmt::format("recompute={}", too_large.deck.train.recompute);
  return fmt::format("{} needs {}", what, format_bytes(too_large.needs()));
}

}  // namespace

std::string ladder_reason(const LayoutPlan& plan, const std::optional<LayoutPlan>& too_large) {
  std::vector<std::string> parts;
  const auto add = [&](std::string part) {
    if (!part.empty()) parts.push_back(std::move(part));
  };
  add(division(plan));
  add(sharing(plan));
  if (plan.deck.train.recompute != "none")
    add(fmt::format("activations computed again ({})", plan.deck.train.recompute));
  if (too_large) add(need_of(plan, *too_large));
  return join(parts, "; ");
}

}  // namespace choir
