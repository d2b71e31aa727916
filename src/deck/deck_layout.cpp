#include "choir/deck/deck_layout.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "choir/comm/layout.hpp"
#include "deck_tables.hpp"

namespace choir {
namespace {

/// A legal layout and its distance from the requested one: first the number of keys that change,
/// then by how much.
struct LegalLayout {
  AxisSizes sizes;
  double distance = 0;
};

/// Returns the layouts of `ranks` ranks that this deck allows with other axis sizes, nearest first.
std::vector<LegalLayout> legal_layouts_near(const Deck& deck, int ranks) {
  std::vector<LegalLayout> legal;
  const auto farness = [](int wish, int size) {
    return wish == size ? 0 : 100 + std::abs(std::log2(static_cast<double>(size) / wish));
  };
  const auto try_layout = [&](const AxisSizes& sizes) {
    Deck other = deck;
    ParallelSection& p = other.parallel;
    p.tensor = sizes.tensor, p.context = sizes.context, p.pipeline = sizes.pipeline, p.data = 0;
    if (!deck::check_parallel(other).empty() || !other.family().check(other).empty()) return;
    try {
      resolve_batch(other, sizes.data);
    } catch (const DeckError&) {
      return;
    }
    const ParallelSection& wish = deck.parallel;
    legal.push_back({sizes, farness(wish.tensor, sizes.tensor) +
                                farness(wish.context, sizes.context) +
                                farness(wish.pipeline, sizes.pipeline) +
                                (wish.data == 0 ? 0 : farness(wish.data, sizes.data))});
  };
  for (const AxisSizes& sizes : axis_sizes_of(ranks))
    if (sizes.tensor <= kMostTensorRanks) try_layout(sizes);
  std::stable_sort(legal.begin(), legal.end(), [](const LegalLayout& a, const LegalLayout& b) {
    return a.distance < b.distance;
  });
  return legal;
}

/// An error whose hint ends with a table of legal layouts, one line each, as the user would write
/// them into the deck.
DeckError no_layout(const std::string& what, const std::string& hint, const Deck& deck, int ranks) {
  constexpr std::size_t kLines = 6;
  const std::vector<LegalLayout> legal = legal_layouts_near(deck, ranks);
  std::string text = hint;
  if (!legal.empty())
    text +=
        fmt::format("; legal on {} ranks{}:", ranks,
                    legal.size() > kLines ? fmt::format(" (the nearest of {})", legal.size()) : "");
  for (std::size_t i = 0; i < std::min(kLines, legal.size()); ++i)
    text += fmt::format(
        "\n  parallel.tensor={} parallel.context={} parallel.pipeline={} (parallel.data {})",
        legal[i].sizes.tensor, legal[i].sizes.context, legal[i].sizes.pipeline,
        legal[i].sizes.data);
  return DeckError(what, text);
}

}  // namespace

Layout layout_of(const Deck& deck, int ranks) {
  const ParallelSection& p = deck.parallel;
  const std::int64_t others = std::int64_t{p.tensor} * p.context * p.pipeline;
  if (ranks % others != 0)
    throw no_layout(fmt::format("{} ranks cannot be divided by parallel.tensor {} x "
                                "parallel.context {} x parallel.pipeline {} = {}",
                                ranks, p.tensor, p.context, p.pipeline, others),
                    fmt::format("start a multiple of {} ranks", others), deck, ranks);
  const int data = ranks / static_cast<int>(others);
  if (p.data != 0 && p.data != data)
    throw no_layout(
        fmt::format("parallel.data is {}, but {} ranks leave {} for it", p.data, ranks, data),
        fmt::format("start {} ranks, or set parallel.data to \"auto\"", p.data * others), deck,
        ranks);
  return Layout(p.tensor, p.context, data, p.pipeline, p.order);
}

}  // namespace choir
