// The batch and the layout of a deck on a given number of ranks, and the nearest legal ones if it
// does not fit.

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/deck/deck.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"
#include "src/deck/nearest_legal.hpp"

namespace choir {
namespace {

constexpr std::int64_t kUsualMicroBatch = 8;  // sequences, for decks without a micro-batch size

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d * d != n) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

/// Returns at most `most` of the legal values, those nearest to `wish`, in ascending order.
std::string nearest(std::vector<std::int64_t> legal, std::int64_t wish, std::size_t most = 4) {
  std::stable_sort(legal.begin(), legal.end(), [wish](std::int64_t a, std::int64_t b) {
    return std::abs(a - wish) < std::abs(b - wish);
  });
  if (legal.size() > most) legal.resize(most);
  std::sort(legal.begin(), legal.end());
  std::vector<std::string> texts;
  for (const std::int64_t value : legal) texts.push_back(std::to_string(value));
  return join(texts, ", ");
}

/// Throws DeckError unless global is a multiple of factor * ranks; `name` is the key of the factor.
void require_multiple(const char* name, std::int64_t factor, std::int64_t global, int ranks) {
  const std::int64_t unit = factor * ranks;
  if (global % unit == 0) return;
  std::string hint =
      fmt::format("nearest legal: train.global_batch_size = {}", multiples_around(global, unit));
  if (global % ranks == 0) {
    std::vector<std::int64_t> legal = divisors(global / ranks);
    hint += fmt::format("; or train.{} = {}", name, nearest(std::move(legal), factor));
  } else {
    // Only these leave a whole number of batches of `factor` to every rank.
    const bool whole = global % factor == 0;
    const std::int64_t parts = whole ? global / factor : global;
    hint += fmt::format("; or data-parallel ranks that divide {}: {}{}", parts,
                        nearest(divisors(parts), ranks),
                        whole ? "" : fmt::format(", with train.{} = 1", name));
  }
  const std::string of_ranks =
      ranks == 1 ? "" : fmt::format(" x {} data-parallel ranks = {}", ranks, unit);
  throw DeckError(fmt::format("train.global_batch_size = {} is not a multiple of train.{} = {}{}",
                              global, name, factor, of_ranks),
                  hint);
}

void require_product(const BatchSizes& batch) {
  const std::int64_t product = batch.micro * batch.accum * batch.data_parallel;
  if (product == batch.global) return;
  std::string hint = fmt::format("nearest legal: train.global_batch_size = {}", product);
  const std::int64_t rest = batch.micro * batch.data_parallel;
  if (batch.global % rest == 0)
    hint += fmt::format("; or train.grad_accum = {}", batch.global / rest);
  hint += "; or leave one of the three out";
  throw DeckError(
      fmt::format(
          "train.global_batch_size = {} is not train.micro_batch_size = {} x train.grad_accum "
          "= {} x {} data-parallel rank{} = {}",
          batch.global, batch.micro, batch.accum, batch.data_parallel, plural(batch.data_parallel),
          product),
      hint);
}

bool power_of_two(std::int64_t n) {
  return n > 0 && std::has_single_bit(static_cast<std::uint64_t>(n));
}

std::string powers_around(std::int64_t n) {
  const auto below = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(n)));
  return fmt::format("{} or {}", below, 2 * below);
}

/// Batch of a family without a fixed shape. Reproducible mode rounds the micro-batches up to a
/// power of two, so that no layout changes the tree of sums.
BatchSizes uneven_batch(const TrainSection& train, int data_parallel) {
  const std::int64_t all = train.micro_batches;
  BatchSizes batch{.micro = 1,
                   .accum = (all + data_parallel - 1) / data_parallel,
                   .global = all,
                   .data_parallel = data_parallel};
  if (!train.reproducible) return batch;
  if (!power_of_two(data_parallel))
    throw DeckError(fmt::format("train.reproducible = true needs powers of two, but the "
                                "data-parallel size is {}",
                                data_parallel),
                    fmt::format("nearest legal: {} ranks", powers_around(data_parallel)));
  const auto padded = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(all)));
  batch.accum = std::max<std::int64_t>(1, padded / data_parallel);
  return batch;
}

}  // namespace

BatchSizes resolve_batch_sizes(std::int64_t micro, std::int64_t accum, std::int64_t global,
                               int data_parallel) {
  CHOIR_CHECK(micro >= 0 && accum >= 0 && global >= 0 && data_parallel >= 1,
              "batch {} {} {} on {} ranks", micro, accum, global, data_parallel);
  // Fewer than two values mean one pass per step, with the default micro-batch size.
  if (micro == 0 && global == 0) micro = kUsualMicroBatch;
  if ((micro > 0) + (global > 0) == 1 && accum == 0) accum = 1;
  BatchSizes batch{micro, accum, global, data_parallel};
  if (global == 0) {
    batch.global = micro * accum * data_parallel;
  } else if (accum == 0) {
    require_multiple("micro_batch_size", micro, global, data_parallel);
    batch.accum = global / (micro * data_parallel);
  } else if (micro == 0) {
    require_multiple("grad_accum", accum, global, data_parallel);
    batch.micro = global / (accum * data_parallel);
  } else {
    require_product(batch);
  }
  return batch;
}

BatchSizes resolve_batch(Deck& deck, int data_parallel) {
  if (deck.parallel.data != 0 && deck.parallel.data != data_parallel)
    throw DeckError(fmt::format("parallel.data = {} but this job has {} rank{} for it",
                                deck.parallel.data, data_parallel, plural(data_parallel)),
                    fmt::format("legal: \"auto\" or {}; or start it on {} rank{}", data_parallel,
                                deck.parallel.data, plural(deck.parallel.data)));
  if (!deck.family().fixed_shape()) return uneven_batch(deck.train, data_parallel);
  TrainSection& train = deck.train;
  const auto given = [&](const char* key, int value) {
    const auto origin = deck.origins.find(key);
    const bool derived =
        origin != deck.origins.end() && origin->second.source == KeySource::derived;
    return derived ? 0 : value;
  };
  const int micro = given("train.micro_batch_size", train.micro_batch_size);
  const int accum = given("train.grad_accum", train.grad_accum);
  const int global = given("train.global_batch_size", train.global_batch_size);
  const BatchSizes batch = resolve_batch_sizes(micro, accum, global, data_parallel);
  if (batch.global > std::numeric_limits<int>::max())
    throw DeckError(fmt::format("a global batch of {} sequences is too large", batch.global),
                    fmt::format("legal: up to {}", std::numeric_limits<int>::max()));
  // A plan runs a whole step; far above this limit a plan alone takes minutes.
  constexpr std::int64_t kMostPasses = 65536;
  if (batch.accum > kMostPasses)
    throw DeckError(
        fmt::format("a global batch of {} sequences in micro-batches of {} is {} passes a step on "
                    "each of {} rank{}",
                    batch.global, batch.micro, batch.accum, data_parallel, plural(data_parallel)),
        fmt::format("legal: up to {}; a larger train.micro_batch_size, or a smaller global batch",
                    kMostPasses));
  if (train.reproducible) require_reproducible(batch);
  train.micro_batch_size = static_cast<int>(batch.micro);
  train.grad_accum = static_cast<int>(batch.accum);
  train.global_batch_size = static_cast<int>(batch.global);
  if (micro == 0) deck.mark_derived("train.micro_batch_size");
  if (accum == 0) deck.mark_derived("train.grad_accum");
  if (global == 0) deck.mark_derived("train.global_batch_size");
  return batch;
}

void require_reproducible(const BatchSizes& batch) {
  std::vector<std::string> wrong, legal;
  if (!power_of_two(batch.data_parallel)) {
    wrong.push_back(fmt::format("the data-parallel size is {}", batch.data_parallel));
    legal.push_back(fmt::format("{} ranks", powers_around(batch.data_parallel)));
  }
  if (!power_of_two(batch.accum)) {
    wrong.push_back(fmt::format("train.grad_accum is {}", batch.accum));
    const auto below =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(batch.accum)));
    const std::int64_t unit = batch.micro * batch.data_parallel * below;
    legal.push_back(
        fmt::format("train.grad_accum = {}, which is train.global_batch_size = {} or {} here",
                    powers_around(batch.accum), unit, 2 * unit));
  }
  if (wrong.empty()) return;
  throw DeckError("train.reproducible = true needs powers of two, but " + join(wrong, " and "),
                  "nearest legal: " + join(legal, ", ") +
                      "; global_batch_size = micro_batch_size x grad_accum x ranks");
}

StepRange profile_range(const std::string& text) {
  if (text.empty()) return {};
  const std::vector<std::string> parts = split(text, ':');
  const auto number = [](const std::string& part) {
    return !part.empty() && part.size() < 16 &&
           std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
  };
  if (parts.size() == 2 && number(parts[0]) && number(parts[1])) {
    const StepRange range{std::stoll(parts[0]), std::stoll(parts[1])};
    if (range.first >= 1 && range.first <= range.last) return range;
  }
  throw DeckError(
      fmt::format("train.profile = \"{}\": expected \"k:l\" with steps 1 <= k <= l", text),
      "for example train.profile=3:5");
}

std::map<std::string, double> rate_factors(const TextMap& scale) {
  std::map<std::string, double> factors;
  for (const auto& [pattern, text] : scale) {
    double factor = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, factor);
    if (error != std::errc() || stop != end || !std::isfinite(factor) || factor <= 0)
      throw DeckError(fmt::format("the factor of '{}' is {}, not a number above 0", pattern,
                                  text.empty() ? "empty" : text),
                      "use train.freeze for parameters that should not be trained");
    factors[pattern] = factor;
  }
  return factors;
}

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

/// "; parallel.pipeline = 3 is not legal here; legal: 1, 2, 4" for every axis that is wrong alone:
/// a legal layout differs from the requested one in the size of this axis only. If other axes are
/// divided, too, the sizes are legal with these: "; with parallel.pipeline = 8, parallel.tensor can
/// be 1, 2, 4". An axis whose size is among the legal ones is not at fault.
std::string axes_at_fault(const Deck& deck, const std::vector<LegalLayout>& legal) {
  const ParallelSection& wish = deck.parallel;
  const auto judge = [&](const char* key, int AxisSizes::*axis, int wanted) -> std::string {
    std::set<int> sizes;
    for (const LegalLayout& layout : legal) {
      AxisSizes like{.tensor = wish.tensor, .context = wish.context, .pipeline = wish.pipeline};
      like.*axis = layout.sizes.*axis;
      if (layout.sizes.tensor == like.tensor && layout.sizes.context == like.context &&
          layout.sizes.pipeline == like.pipeline)
        sizes.insert(layout.sizes.*axis);
    }
    if (wanted == 1 || sizes.empty() || sizes.contains(wanted)) return {};
    std::vector<std::string> words, others;
    for (const int size : sizes) words.push_back(std::to_string(size));
    for (const auto& [other, size] :
         {std::pair("parallel.tensor", wish.tensor), std::pair("parallel.context", wish.context),
          std::pair("parallel.pipeline", wish.pipeline)})
      if (size != 1 && std::string_view(other) != key)
        others.push_back(fmt::format("{} = {}", other, size));
    if (others.empty())
      return fmt::format("; {} = {} is not legal here; legal: {}", key, wanted, join(words, ", "));
    return fmt::format("; with {}, {} can be {}", join(others, " and "), key, join(words, ", "));
  };
  return judge("parallel.tensor", &AxisSizes::tensor, wish.tensor) +
         judge("parallel.context", &AxisSizes::context, wish.context) +
         judge("parallel.pipeline", &AxisSizes::pipeline, wish.pipeline);
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
  return DeckError(what + axes_at_fault(deck, legal), text);
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
