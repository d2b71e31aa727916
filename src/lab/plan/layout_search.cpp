#include "src/lab/plan/layout_search.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "choir/comm/layout.hpp"
#include "choir/deck/deck.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/run/layout_report.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

/// Describes how ranks exchange positions in attention.
std::string meeting(const Deck& deck) {
  const ContextWay way = context_way_of(deck);
  if (way.group > 1)
    return fmt::format("exchange heads {} by {} and pass keys and values around", way.group,
                       way.group);
  switch (way.mode) {
    case ContextMode::gather:
      return "gather keys and values";
    case ContextMode::ring:
      return "pass keys and values around";
    default:
      return "exchange heads";
  }
}

std::string division(const LayoutPlan& plan) {
  const Layout& layout = plan.layout;
  std::vector<std::string> parts;
  if (const int t = layout.size(Axis::tensor); t > 1) {
    const bool far = groups_across_nodes(layout, Axis::tensor,
                                         nodes_of_ranks(layout.ranks(), plan.ranks_per_node)) > 0;
    parts.push_back(fmt::format("layers divided among {} ranks {}", t,
                                far ? "of several nodes (every layer waits for the network)"
                                    : "of one node (they communicate in every layer)"));
  }
  if (const int c = layout.size(Axis::context); c > 1)
    parts.push_back(
        fmt::format("sequences divided among {} ranks, which {}", c, meeting(plan.deck)));
  if (const int p = layout.size(Axis::pipeline); p > 1)
    parts.push_back(
        fmt::format("layers in {} stages, idle {:.1f} % of the time", p, 100 * plan.bubble));
  if (!parts.empty()) return join(parts, "; ");
  if (layout.ranks() == 1) return "one rank holds everything";
  return plan.deck.parallel.zero == 0 ? "every rank holds everything, only gradients are sent" : "";
}

std::string sharing(const LayoutPlan& plan) {
  const int ranks = plan.layout.size(Axis::data);
  const std::int64_t passes = plan.batch.accum;
  switch (plan.deck.parallel.zero) {
    case 1:
      return fmt::format("moments spread over {} ranks, same traffic as plain data parallelism",
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
  std::string what = "a smaller saving";
  if (too_large.deck.parallel.zero != plan.deck.parallel.zero)
    what = fmt::format("zero={}", too_large.deck.parallel.zero);
  if (too_large.deck.train.recompute != plan.deck.train.recompute)
    what = fmt::format("recompute={}", name_of(too_large.deck.train.recompute));
  return fmt::format("{} needs {}", what, format_bytes(too_large.needs()));
}

/// One sentence: the division of the model, its cost, and the saving against `too_large`, the last
/// attempt on the same ranks.
std::string ladder_reason(const LayoutPlan& plan, const std::optional<LayoutPlan>& too_large) {
  std::vector<std::string> parts;
  const auto add = [&](std::string part) {
    if (!part.empty()) parts.push_back(std::move(part));
  };
  add(division(plan));
  add(sharing(plan));
  if (plan.deck.train.recompute != Recompute::none)
    add(fmt::format("activations recomputed ({})", name_of(plan.deck.train.recompute)));
  if (too_large) add(need_of(plan, *too_large));
  return join(parts, "; ");
}

/// Names the part of a step in which one layout gains most over another, for the same number of
/// targets.
std::string why_faster(const LayoutPlan& fast, const LayoutPlan& slow) {
  const double scale = fast.units / slow.units;
  double gain = 0;
  std::string part = "nothing in particular";
  const auto compare = [&](double of_fast, double of_slow, const std::string& name) {
    const double less = of_slow * scale - of_fast;
    if (less > gain) gain = less, part = name;
  };
  const StepTime &a = *fast.time, &b = *slow.time;
  compare(a.compute, b.compute, "less time in forward and backward");
  compare(a.update, b.update, "a shorter update");
  compare(a.idle, b.idle, "less idle stages");
  for (std::size_t i = 0; i < kAxes; ++i)
    compare(a.exposed[i], b.exposed[i],
            fmt::format("less waiting for {} (the next: mostly {})",
                        short_name(static_cast<Axis>(i)), b.calls_most));
  return fmt::format("{:.1f} % faster than the next: {}, {:.1f} % of its step",
                     100 * (fast.units_per_second() / slow.units_per_second() - 1), part,
                     100 * gain / (b.seconds * scale));
}

using Changes = std::vector<std::string>;

/// A micro-batch may use this share of the memory. The rest is for memory that is not planned (the
/// context of the driver, buffers of libraries).
constexpr double kFull = 0.9;
/// With fewer micro-batches a pipeline is idle more than necessary.
constexpr std::int64_t kMicroBatchesPerStage = 4;
/// The number of layouts among which the fastest are chosen; later ones of the ladder are ignored.
constexpr std::size_t kMostTimed = 40;

/// Data parallelism gets the remaining ranks.
Changes changes_to(const AxisSizes& sizes) {
  return {"parallel.data=auto", fmt::format("parallel.tensor={}", sizes.tensor),
          fmt::format("parallel.context={}", sizes.context),
          fmt::format("parallel.pipeline={}", sizes.pipeline)};
}

std::vector<int> divisors(std::int64_t n) {
  std::vector<int> all;
  for (std::int64_t d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(static_cast<int>(d));
  return all;
}

std::vector<AxisSizes> shapes_of(const PlanCase& request) {
  std::vector<AxisSizes> shapes = axis_sizes_of(request.ranks);
  const ParallelSection& deck = request.deck.parallel;
  for (const Axis axis : request.kept)
    std::erase_if(shapes, [&](const AxisSizes& s) {
      return (axis == Axis::tensor && s.tensor != deck.tensor) ||
             (axis == Axis::pipeline && s.pipeline != deck.pipeline) ||
             (axis == Axis::context && s.context != deck.context);
    });
  const auto step = [&](const AxisSizes& s) {
    return std::tuple(s.tensor > request.ranks_per_node, s.pipeline, s.context, s.tensor);
  };
  std::stable_sort(shapes.begin(), shapes.end(),
                   [&](const AxisSizes& a, const AxisSizes& b) { return step(a) < step(b); });
  return shapes;
}

Changes joined(Changes changes, const Changes& more) {
  changes.insert(changes.end(), more.begin(), more.end());
  return changes;
}

class Search {
 public:
  Search(const PlanCase& request, const DeckVariants& variants, std::size_t most)
      : request_(request),
        variants_(variants),
        wanted_(most),
        most_(request.calibration ? std::max(most, kMostTimed) : most) {}

  LayoutSearch run() {
    for (const AxisSizes& shape : shapes_of(request_)) visit(shape);
    if (request_.calibration) order_by_time();
    for (LayoutChoice& choice : found_.fitting) shorten(choice.changes);
    if (found_.closest) shorten(found_.closest->changes);
    return std::move(found_);
  }

 private:
  /// The first legal variant of the shape, if any.
  std::optional<Changes> legal_shape(const AxisSizes& shape) {
    Changes changes = changes_to(shape);
    Changes divided = joined(changes, {"parallel.sequence=true"});
    if (shape.tensor > 1 && legal(divided)) return divided;
    changes.emplace_back("parallel.sequence=false");
    if (legal(changes)) return changes;
    return std::nullopt;
  }

  /// True if the checks of the deck, the layout and the batch accept it with some micro-batch: the
  /// deck's own need not divide the batch of a data rank.
  bool legal(const Changes& changes) {
    try {
      Deck deck = variants_.with(with_micro(changes, keeps_micro() ? 0 : 1));
      const Layout layout = layout_of(deck, request_.ranks);
      resolve_batch(deck, layout.size(Axis::data));
      return true;
    } catch (const DeckError&) {
      return false;
    }
  }

  /// Legal options to save memory, the cheapest first, starting from the deck's own value.
  std::vector<Changes> savings(const AxisSizes& shape, const Changes& base) {
    constexpr std::array<Recompute, 3> kCheapestFirst{Recompute::none, Recompute::selective,
                                                      Recompute::full};
    const auto* first =
        std::find(kCheapestFirst.begin(), kCheapestFirst.end(), request_.deck.train.recompute);
    const bool alone = shape.data == 1;
    std::vector<Changes> all;
    for (const auto* recompute = first; recompute < kCheapestFirst.end(); ++recompute)
      for (int zero = 0; zero <= (alone ? 0 : 3); ++zero) {
        const Changes changes =
            joined(base, {fmt::format("train.recompute={}", name_of(*recompute)),
                          fmt::format("parallel.zero={}", zero)});
        if (legal(changes)) all.push_back(changes);
      }
    return all;
  }

  std::optional<LayoutPlan> plan(const Changes& changes) {
    PlanCase request = request_;
    try {
      request.deck = variants_.with(changes);
      return plan_layout(request, Detail::outline);
    } catch (const DeckError&) {  // refused only by the engine
      return std::nullopt;
    }
  }

  /// True if the micro-batch is that of the deck: without a global batch it decides the batch, and
  /// in reproducible mode the bits.
  bool keeps_micro() const {
    const TrainSection& train = request_.deck.train;
    return train.global_batch_size == 0 || train.reproducible;
  }

  /// Micro-batches that keep the global batch, ascending; {0}: the deck's own.
  std::vector<int> micro_batches(const AxisSizes& shape) {
    const TrainSection& train = request_.deck.train;
    const int data = shape.data;
    if (keeps_micro()) return {0};
    std::vector<int> all = divisors(train.global_batch_size / data);
    const auto few = [&](int micro) {
      return train.global_batch_size / data / micro < kMicroBatchesPerStage * shape.pipeline;
    };
    if (shape.pipeline > 1 && !few(1)) std::erase_if(all, few);
    return all;
  }

  static Changes with_micro(const Changes& changes, int micro) {
    if (micro == 0) return changes;
    return joined(changes, {fmt::format("train.micro_batch_size={}", micro), "train.grad_accum=0"});
  }

  /// The part of the memory that a layout cannot do without: the copies for saves are left out
  /// where they do not fit, unless the deck requires them.
  static double share(const LayoutPlan& plan) {
    const bool required = plan.deck.checkpoint.async == AsyncSaves::always;
    const MemoryPlan& memory = plan.fullest().plan.memory;
    const std::size_t copies =
        plan.on_host && !required ? memory.bytes_of("checkpoint snapshot") : 0;
    return (plan.needs() - static_cast<double>(copies)) / plan.memory_limit;
  }

  /// The largest micro-batch that leaves the margin; `least` is known to fit.
  LayoutChoice fill(const Changes& changes, const std::vector<int>& micros, LayoutPlan least) {
    LayoutChoice choice{std::move(least), with_micro(changes, micros.front()), ""};
    std::size_t low = 0, high = micros.size();
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      const Changes larger = with_micro(changes, micros[middle]);
      std::optional<LayoutPlan> filled = plan(larger);
      if (filled && share(*filled) <= kFull) {
        choice.plan = std::move(*filled), choice.changes = larger;
        low = middle;
      } else {
        high = middle;
      }
    }
    return choice;
  }

  void visit(const AxisSizes& shape) {
    const std::optional<Changes> base = legal_shape(shape);
    if (!base) return;
    const std::vector<Changes> ways = savings(shape, *base);
    if (ways.empty()) return;
    if (found_.fitting.size() >= most_) {
      ++found_.further;
      return;
    }
    const std::vector<int> micros = micro_batches(shape);
    // If the option that saves most is too large, the others are too.
    const std::optional<LayoutPlan> smallest = plan(with_micro(ways.back(), micros.front()));
    if (!smallest) return;
    if (!smallest->fits()) return keep_closest(*smallest, with_micro(ways.back(), micros.front()));
    climb(shape, ways, micros);
  }

  void climb(const AxisSizes& shape, const std::vector<Changes>& ways,
             const std::vector<int>& micros) {
    std::optional<LayoutPlan> too_large;
    bool found = false;
    for (const Changes& way : ways) {
      const bool recomputes = way.end()[-2] != fmt::format("train.recompute={}",
                                                           name_of(request_.deck.train.recompute));
      if ((recomputes && found) || found_.fitting.size() >= most_) break;
      std::optional<LayoutPlan> least = plan(with_micro(way, micros.front()));
      if (!least) continue;
      if (!least->fits()) {
        too_large = std::move(least);
        continue;
      }
      LayoutChoice choice = fill(way, micros, std::move(*least));
      choice.reason = ladder_reason(choice.plan, too_large);
      found_.fitting.push_back(std::move(choice));
      found = true;
      // The ZeRO stages are steps of the ladder only while nothing else divides the model.
      if ((shape.data < request_.ranks && !request_.calibration) || recomputes) break;
    }
  }

  void order_by_time() {
    std::vector<LayoutChoice>& all = found_.fitting;
    std::stable_sort(all.begin(), all.end(), [](const LayoutChoice& a, const LayoutChoice& b) {
      return a.plan.units_per_second() > b.plan.units_per_second();
    });
    if (all.size() > 1) all[0].why = why_faster(all[0].plan, all[1].plan);
    if (all.size() <= wanted_) return;
    found_.further += static_cast<int>(all.size() - wanted_);
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(wanted_), all.end());
  }

  /// Removes changes that repeat the deck's own values.
  void shorten(Changes& changes) {
    const std::string wanted = deck_digest(variants_.with(changes));
    for (std::size_t i = changes.size(); i-- > 0;) {
      Changes fewer = changes;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      const std::optional<Deck> deck = variants_.legal_with(fewer);
      if (deck && deck_digest(*deck) == wanted) changes = std::move(fewer);
    }
  }

  void keep_closest(const LayoutPlan& plan, const Changes& changes) {
    ++found_.too_large;
    if (!found_.closest || share(plan) < share(found_.closest->plan))
      found_.closest = LayoutChoice{plan, changes, ""};
  }

  const PlanCase& request_;
  const DeckVariants& variants_;
  std::size_t wanted_, most_;  // number to return, number to plan
  LayoutSearch found_;
};

}  // namespace

LayoutSearch search_layouts(const PlanCase& request, const DeckVariants& variants,
                            std::size_t most) {
  return Search(request, variants, most).run();
}

}  // namespace choir
