#include "src/lab/verify/verify_layout.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "choir/comm/layout.hpp"
#include "src/core/text.hpp"
#include "src/deck/deck_tables.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

constexpr std::array<LayoutAxisName, kLayoutAxes> kNames{{
    {"dp", "parallel.data", "1"},
    {"tp", "parallel.tensor", "1"},
    {"pp", "parallel.pipeline", "1"},
    {"cp", "parallel.context", "1"},
    {"context_mode", "parallel.context_mode", "auto"},
    {"sequence", "parallel.sequence", "false"},
    {"zero", "parallel.zero", "0"},
    {"zero_group", "parallel.zero_group", "all"},
    {"schedule", "parallel.schedule", "1f1b"},
    {"virtual_stages", "parallel.virtual_stages", "1"},
    {"micro", "train.micro_batch_size", ""},
    {"recompute", "train.recompute", "none"},
    {"offload", "parallel.offload", "none"},
    {"offload_gradients", "parallel.offload_gradients", "false"},
    {"order", "parallel.order", "tp-cp-dp-pp"},
    {"tile", "model.tile", "1"},
    {"head_chunk", "train.head_chunk", ""},
    {"attention_chunk", "train.attention_chunk", "0"},
    {"preload", "data.preload", "none"},
}};

constexpr int kSizes = 4;  // the first four axes

[[noreturn]] void refuse(const std::string& what, const std::string& layout,
                         const std::string& advice = {}) {
  throw DeckError(
      fmt::format("--layouts: {} in \"{}\"", what, layout),
      advice + "legal words: " + layout_words() + "; for example \"dp=2 tp=2 sequence=true,dp=4\"");
}

/// Splits "tp=2", "tp2", "tensor=2" or "parallel.tensor=2" into the word of an axis and its value.
std::pair<std::string, std::string> name_and_value(const std::string& word) {
  std::size_t end = word.find('=');
  std::size_t next = end + 1;
  if (end == std::string::npos)
    end = next = std::min(word.find_first_of("0123456789"), word.size());
  const std::string name = word.substr(0, end);
  for (const LayoutAxisName& axis : kNames)
    if (const std::string key = axis.key; name == key || name == key.substr(key.find('.') + 1))
      return {axis.word, word.substr(next)};
  return {name, word.substr(std::min(next, word.size()))};
}

VerifyLayout parse_layout(const std::string& text, const FamilyTable* families) {
  VerifyLayout layout;
  std::array<bool, kLayoutAxes> given{};
  for (const std::string& word : split(text, ' ')) {
    if (word.empty()) continue;
    const auto [name, value] = name_and_value(word);
    const auto* const found = std::find_if(kNames.begin(), kNames.end(),
                                           [&](const LayoutAxisName& n) { return name == n.word; });
    if (found == kNames.end()) {
      const std::string key =
          families == nullptr ? ""
                              : deck::key_by_last_name(families->keys(),
                                                       fold_name(name.substr(name.rfind('.') + 1)));
      std::vector<std::string> words;
      for (const LayoutAxisName& axis : kNames) words.emplace_back(axis.word);
      const std::string near = nearest_name(name, words);
      refuse(fmt::format("unknown word '{}'", name), text,
             !near.empty() ? fmt::format("did you mean '{}='? ", near)
             : key.empty()
                 ? ""
                 : fmt::format("verify does not vary {0}; add {0}=VALUE after the layouts "
                               "to set it in all of them; ",
                               key));
    }
    if (value.empty()) refuse(fmt::format("'{}' has no value", name), text);
    const auto at = static_cast<std::size_t>(found - kNames.begin());
    if (given[at]) refuse(fmt::format("'{}' is given twice", name), text);
    given[at] = true;
    const bool number = value.size() < 7 && value.front() != '0' &&
                        value.find_first_not_of("0123456789") == std::string::npos;
    if (at < kSizes && !number)
      refuse(fmt::format("'{}' is not a number of ranks for '{}'", value, name), text);
    layout[static_cast<LayoutAxis>(at)] = value;
  }
  return layout;
}

}  // namespace

const LayoutAxisName& name_of(LayoutAxis axis) {
  return kNames[static_cast<std::size_t>(axis)];
}

VerifyLayout::VerifyLayout() {
  for (std::size_t a = 0; a < values_.size(); ++a) values_[a] = kNames[a].plain;
}

int VerifyLayout::size(LayoutAxis axis) const {
  CHOIR_CHECK(index(axis) < kSizes, "'{}' divides no ranks", name_of(axis).word);
  return std::stoi((*this)[axis]);
}

int VerifyLayout::ranks() const {
  std::int64_t ranks = 1;
  for (int a = 0; a < kSizes; ++a)
    ranks = std::min<std::int64_t>(ranks * size(static_cast<LayoutAxis>(a)), 1 << 30);
  return static_cast<int>(ranks);
}

std::string VerifyLayout::to_string() const {
  std::string text;
  for (std::size_t a = 0; a < values_.size(); ++a)
    if (a < kSizes || values_[a] != kNames[a].plain)
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", kNames[a].word, values_[a]);
  return text;
}

std::string layout_words() {
  std::vector<std::string> words;
  for (const LayoutAxisName& name : kNames) words.push_back(name.word);
  return join(words, "=, ") + "=";
}

std::vector<VerifyLayout> parse_layouts(const std::string& text, const FamilyTable* families) {
  std::vector<VerifyLayout> layouts;
  for (const std::string& part : split(text, ',')) {
    if (trim(part).empty()) refuse("an empty layout between two commas", text);
    layouts.push_back(parse_layout(part, families));
  }
  if (layouts.empty()) refuse("no layout given", text);
  return layouts;
}

Deck lay_out(const Deck& deck, const VerifyLayout& layout, std::vector<KeyProblem>& problems) {
  std::vector<std::string> overrides;
  for (std::size_t a = 0; a < kNames.size(); ++a) {
    const std::string& value = layout[static_cast<LayoutAxis>(a)];
    // Behind the sizes, the plain value is the default of a key, which some families do not have.
    const bool unchanged = value == kNames[a].plain && !deck.given(kNames[a].key);
    if (a >= kSizes && unchanged) continue;
    if (!value.empty()) overrides.push_back(fmt::format("{}={}", kNames[a].key, value));
  }
  Deck base = deck;  // the batch of a step stays; the accumulation follows from it
  base.train.grad_accum = 0;
  base.origins.erase("train.grad_accum");
  if (layout[LayoutAxis::offload] != "file") {
    base.parallel.offload_dir.clear();
    base.origins.erase("parallel.offload_dir");
  }
  const std::size_t before = problems.size();
  Deck result = vary_deck(base, overrides, problems);
  if (problems.size() > before) return result;
  try {
    resolve_batch(result, layout.size(LayoutAxis::data));
  } catch (const DeckError& error) {
    problems.push_back({{"train.global_batch_size"}, error.what()});
  }
  return result;
}

namespace {

/// The values of the axes that do not divide ranks, plain ones first. Those that depend on the deck
/// are added elsewhere.
std::vector<std::string> candidates(LayoutAxis axis) {
  switch (axis) {
    case LayoutAxis::context_mode:
      return {"auto", "gather", "ring", "ring-ulysses"};
    case LayoutAxis::sequence:
    case LayoutAxis::offload_gradients:
      return {"false", "true"};
    case LayoutAxis::zero:
      return {"0", "1", "2", "3"};
    case LayoutAxis::zero_group:
      return {"all", "2"};
    case LayoutAxis::schedule:
      return {"1f1b", "gpipe", "interleaved", "zb-h1"};
    case LayoutAxis::virtual_stages:
      return {"1", "2"};
    case LayoutAxis::recompute:
      return {"none", "selective", "full"};
    case LayoutAxis::offload:
      return {"none", "file", "optimizer", "all"};
    case LayoutAxis::order:
      return {"tp-cp-dp-pp", "pp-dp-cp-tp", "dp-tp-cp-pp"};
    case LayoutAxis::tile:
      return {"1", "4"};
    case LayoutAxis::attention_chunk:
      return {"0", "5"};
    case LayoutAxis::preload:
      return {"none", "device"};
    default:
      return {};
  }
}

/// Micro-batch sizes: the deck's (plain), then the smallest other ones that divide the batch.
std::vector<std::string> micro_batches(const Deck& deck) {
  constexpr std::size_t kMost = 4;
  const int global = deck.train.global_batch_size, own = deck.train.micro_batch_size;
  std::vector<std::string> sizes{name_of(LayoutAxis::micro_batch).plain};
  for (int size = 1; size <= global && sizes.size() < kMost; ++size)
    if (global % size == 0 && size != own) sizes.push_back(std::to_string(size));
  return sizes;
}

/// Chunks of the head: the deck's (plain), and either few rows or all of them at once.
std::vector<std::string> head_chunks(const Deck& deck) {
  const ModelConfig model = model_of(deck);
  const HeadChunk own = model.family().head_chunk(model, DType::f64);
  return {name_of(LayoutAxis::head_chunk).plain, own.rows > 0 ? "0" : "5"};
}

/// The axes that divide ranks, in order. Their order matters only if there are at least two.
std::string visible_order(const VerifyLayout& layout) {
  std::string visible;
  const std::string& order = layout[LayoutAxis::order];
  for (std::size_t at = 0; at + 2 <= order.size(); at += 3)
    for (const LayoutAxis axis :
         {LayoutAxis::data, LayoutAxis::tensor, LayoutAxis::pipeline, LayoutAxis::context})
      if (order.compare(at, 2, name_of(axis).word) == 0 && layout.size(axis) > 1)
        visible += name_of(axis).word;
  return visible;
}

/// True if the value of this axis is plain or changes something.
bool has_effect(const VerifyLayout& layout, LayoutAxis axis) {
  const auto plain = [&](LayoutAxis of) { return layout[of] == name_of(of).plain; };
  if (plain(axis)) return true;
  switch (axis) {
    case LayoutAxis::context_mode:
      return layout.size(LayoutAxis::context) > 1;
    case LayoutAxis::sequence:
      return layout.size(LayoutAxis::tensor) > 1;
    case LayoutAxis::zero:
      return layout.size(LayoutAxis::data) > 1;
    case LayoutAxis::zero_group: {
      const int group = std::stoi(layout[axis]), data = layout.size(LayoutAxis::data);
      return !plain(LayoutAxis::zero) && data > group && data % group == 0;
    }
    case LayoutAxis::offload_gradients:  // of slices, which only stages 2 and 3 have
      return !plain(LayoutAxis::offload) && std::stoi(layout[LayoutAxis::zero]) >= 2;
    case LayoutAxis::schedule:
      return layout.size(LayoutAxis::pipeline) > 1;
    case LayoutAxis::virtual_stages:
      return layout[LayoutAxis::schedule] == "interleaved";
    case LayoutAxis::order: {
      // Only the first of several equivalent orders is used.
      VerifyLayout other = layout;
      for (const std::string& order : candidates(axis)) {
        if (order == layout[axis]) return true;
        other[axis] = order;
        if (visible_order(layout) == visible_order(other)) return false;
      }
      return true;
    }
    case LayoutAxis::head_chunk:
    case LayoutAxis::attention_chunk:
    case LayoutAxis::preload: {
      using enum LayoutAxis;
      constexpr std::array kAlone{zero_group, micro_batch, offload,         order,
                                  tile,       head_chunk,  attention_chunk, preload};
      return std::all_of(kAlone.begin(), kAlone.end(),
                         [&](LayoutAxis other) { return other == axis || plain(other); });
    }
    default:
      return true;
  }
}

/// Enumerates the values of the axes after the sizes; `emit` gets every layout.
template <class Emit>
void choose(VerifyLayout& layout, int axis, const std::vector<std::vector<std::string>>& values,
            const Emit& emit) {
  if (axis == kLayoutAxes) return emit(layout);
  const auto at = static_cast<LayoutAxis>(axis);
  for (const std::string& value : values[static_cast<std::size_t>(axis)]) {
    layout[at] = value;
    if (has_effect(layout, at)) choose(layout, axis + 1, values, emit);
  }
  layout[at] = name_of(at).plain;
}

/// All sizes of up to `ranks` ranks: pipelines vary slowest, then context, tensor and data.
std::vector<AxisSizes> sizes_up_to(int ranks) {
  std::vector<AxisSizes> all;
  for (int n = 1; n <= ranks; ++n)
    for (const AxisSizes& sizes : axis_sizes_of(n)) all.push_back(sizes);
  const auto key = [](const AxisSizes& s) {
    return std::tuple(s.pipeline, s.context, s.tensor, s.data);
  };
  std::sort(all.begin(), all.end(),
            [&](const AxisSizes& a, const AxisSizes& b) { return key(a) < key(b); });
  return all;
}

bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

/// Layouts as numbers of values, and the pairs of values in each.
class Pairs {
 public:
  explicit Pairs(const std::vector<VerifyLayout>& layouts) {
    std::map<std::pair<int, std::string>, int> numbers;
    std::map<std::pair<int, int>, int> pair_numbers;
    for (const VerifyLayout& layout : layouts) {
      std::array<int, kLayoutAxes> values{};
      for (int a = 0; a < kLayoutAxes; ++a) {
        const auto key = std::pair(a, layout[static_cast<LayoutAxis>(a)]);
        values[static_cast<std::size_t>(a)] =
            numbers.try_emplace(key, static_cast<int>(numbers.size())).first->second;
      }
      std::vector<int> pairs;
      for (std::size_t a = 0; a < values.size(); ++a)
        for (std::size_t b = a + 1; b < values.size(); ++b)
          pairs.push_back(pair_numbers
                              .try_emplace(std::pair(values[a], values[b]),
                                           static_cast<int>(pair_numbers.size()))
                              .first->second);
      values_.emplace_back(values.begin(), values.end());
      pairs_.push_back(std::move(pairs));
    }
    value_seen_.resize(numbers.size());
    pair_seen_.resize(pair_numbers.size());
  }

  /// New values count most, then new pairs, then rare pairs.
  double gain(std::size_t layout) const {
    double sum = 0;
    for (const int value : values_[layout])
      if (value_seen_[static_cast<std::size_t>(value)] == 0) sum += 1e6;
    for (const int pair : pairs_[layout]) {
      const int seen = pair_seen_[static_cast<std::size_t>(pair)];
      sum += seen == 0 ? 1e3 : 1.0 / seen;
    }
    return sum;
  }
  void take(std::size_t layout) {
    for (const int value : values_[layout])
      if (value_seen_[static_cast<std::size_t>(value)]++ == 0) ++values_covered_;
    for (const int pair : pairs_[layout])
      if (pair_seen_[static_cast<std::size_t>(pair)]++ == 0) ++pairs_covered_;
  }
  bool all_values() const { return values_covered_ == value_seen_.size(); }
  bool all_pairs() const { return pairs_covered_ == pair_seen_.size(); }

 private:
  std::vector<std::vector<int>> values_, pairs_;  // by layout
  std::vector<int> value_seen_, pair_seen_;
  std::size_t values_covered_ = 0, pairs_covered_ = 0;
};

}  // namespace

std::vector<VerifyLayout> legal_layouts(const Deck& deck, int ranks) {
  std::vector<std::vector<std::string>> values(kLayoutAxes);
  for (int a = 0; a < kLayoutAxes; ++a) {
    const auto axis = static_cast<LayoutAxis>(a);
    const LayoutAxisName& name = name_of(axis);
    std::vector<std::string> all = candidates(axis);
    if (axis == LayoutAxis::micro_batch) all = micro_batches(deck);
    if (axis == LayoutAxis::head_chunk) all = head_chunks(deck);
    if (axis == LayoutAxis::offload && deck.device == RequestedDevice::cpu)
      all.resize(2);  // the CPU's memory is host memory
    if (all.empty())
      for (int n = 1; n <= ranks; ++n) all.push_back(std::to_string(n));
    // A key that does not exist, or not for this model, can only be plain.
    const bool of_families = axis == LayoutAxis::tile || axis == LayoutAxis::head_chunk ||
                             axis == LayoutAxis::attention_chunk;
    const bool fixed = (axis == LayoutAxis::context && !deck.family().shares_positions()) ||
                       (of_families && deck.family().keys().find(name.key) == nullptr);
    for (const std::string& value : all)
      if (value == name.plain ||
          (!fixed && refusal_of(deck.families.table(), name.key, value).empty()))
        values[static_cast<std::size_t>(a)].push_back(value);
  }
  std::vector<VerifyLayout> legal;
  VerifyLayout layout;
  std::vector<KeyProblem> problems;
  constexpr int kFirstOther = 4;
  for (const AxisSizes& sizes : sizes_up_to(ranks)) {
    const std::array<std::string, kFirstOther> words{
        std::to_string(sizes.data), std::to_string(sizes.tensor), std::to_string(sizes.pipeline),
        std::to_string(sizes.context)};
    const auto taken = [&](std::size_t axis) { return contains(values[axis], words[axis]); };
    if (!(taken(0) && taken(1) && taken(2) && taken(3))) continue;
    for (std::size_t axis = 0; axis < words.size(); ++axis)
      layout[static_cast<LayoutAxis>(axis)] = words[axis];
    choose(layout, kFirstOther, values, [&](const VerifyLayout& complete) {
      problems.clear();
      const Deck laid_out = lay_out(deck, complete, problems);
      // If one factor is 1, the product is the same as another mode.
      const bool product = complete[LayoutAxis::context_mode] == "ring-ulysses";
      if (problems.empty() && (!product || context_way_of(laid_out).group > 1))
        legal.push_back(complete);
    });
  }
  return legal;
}

Covering covering_order(const std::vector<VerifyLayout>& legal, std::size_t most) {
  Pairs pairs(legal);
  Covering covering;
  std::vector<std::size_t> left(legal.size());
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = i;
  while (!left.empty() && (covering.layouts.size() < most || !pairs.all_pairs())) {
    auto best = left.begin();
    double gain = -1;
    for (auto candidate = left.begin(); candidate != left.end(); ++candidate) {
      const double its = pairs.gain(*candidate);
      if (its > gain) best = candidate, gain = its;
    }
    pairs.take(*best);
    covering.layouts.push_back(legal[*best]);
    left.erase(best);
    if (covering.values_at == 0 && pairs.all_values()) covering.values_at = covering.layouts.size();
    if (covering.pairs_at == 0 && pairs.all_pairs()) covering.pairs_at = covering.layouts.size();
  }
  return covering;
}

namespace {

/// The legal values of the words that a problem names: "legal: preload=none, preload=host; ".
std::string legal_words_of(const Deck& deck, const KeyProblem& problem) {
  std::string text;
  for (const LayoutAxisName& axis : kNames) {
    if (std::ranges::find(problem.keys, axis.key) == problem.keys.end()) continue;
    const Key* const key = deck.families.table().keys().find(axis.key);
    if (key == nullptr) continue;
    const std::vector<std::string> values =
        key->type == KeyType::boolean ? std::vector<std::string>{"true", "false"} : key->choices;
    const std::string lead = fmt::format("{}=", axis.word);
    if (!values.empty())
      text += fmt::format("legal: {}{}; ", lead, join(values, ", " + lead));
    else if (const std::string limits = key->constraint(); !limits.empty())
      text += fmt::format("legal for {}: {}; ", lead, limits);
  }
  return text;
}

void require_legal(const Deck& deck, int ranks, const VerifyLayout& layout) {
  std::vector<KeyProblem> problems;
  lay_out(deck, layout, problems);
  if (!problems.empty())
    throw DeckError(
        fmt::format("--layouts: {}: {}", layout.to_string(), problems.front().text),
        legal_words_of(deck, problems.front()) + "`--layouts exhaustive` runs every legal layout");
  if (layout.ranks() > ranks)
    throw DeckError(
        fmt::format("--layouts: {} has {} ranks, but {} were started", layout.to_string(),
                    layout.ranks(), ranks),
        fmt::format("start that many: jobs/launch -n {} build/choir verify ...", layout.ranks()));
}

/// True for "exhaustive" or "exhaustive:N"; `sample` gets N.
bool wants_exhaustive(const std::string& wish, std::size_t& sample) {
  constexpr std::string_view kWord = "exhaustive";
  if (wish.rfind(kWord, 0) != 0) return false;
  if (wish.size() == kWord.size()) return true;
  const std::string count = wish.substr(std::min(wish.size(), kWord.size() + 1));
  const bool number = !count.empty() && count.size() < 10 && count.front() != '0' &&
                      count.find_first_not_of("0123456789") == std::string::npos;
  if (wish[kWord.size()] != ':' || !number)
    throw DeckError(fmt::format("--layouts: '{}' does not end in a number of layouts", wish),
                    "use for example exhaustive:500");
  sample = std::stoul(count);
  return true;
}

}  // namespace

LayoutSelection choose_layouts(const Deck& deck, int ranks, const std::string& wish) {
  constexpr std::size_t kAll = 150, kQuick = 32;
  LayoutSelection choice;
  const bool all = wish == "all", quick = wish == "quick";
  std::size_t sample = 0;
  if (all || quick || wants_exhaustive(wish, sample)) {
    choice.layouts = legal_layouts(deck, ranks);
    const std::size_t legal = choice.layouts.size();
    choice.about = fmt::format("all {} legal ones", legal);
    if (all || quick) {
      Covering covering = covering_order(choice.layouts, kAll);
      if (quick)
        covering.layouts.resize(
            std::min(covering.layouts.size(), std::max(kQuick, covering.values_at)));
      const bool pairs = covering.layouts.size() >= covering.pairs_at;
      choice.about = fmt::format("{} of {} legal ones, with every value of every axis{}",
                                 covering.layouts.size(), legal,
                                 pairs ? " and every pair of values that can be combined" : "");
      choice.layouts = std::move(covering.layouts);
    }
  } else {
    choice.layouts = parse_layouts(wish, &deck.families.table());
    for (const VerifyLayout& layout : choice.layouts) require_legal(deck, ranks, layout);
    choice.about = fmt::format("{}, as listed", choice.layouts.size());
    return choice;
  }
  const auto key = [](const VerifyLayout& l) {
    return std::tuple(l.ranks(), l.size(LayoutAxis::pipeline), l.size(LayoutAxis::context),
                      l.size(LayoutAxis::tensor), l.size(LayoutAxis::data), l[LayoutAxis::order]);
  };
  std::stable_sort(choice.layouts.begin(), choice.layouts.end(),
                   [&](const auto& a, const auto& b) { return key(a) < key(b); });
  if (const std::size_t legal = choice.layouts.size(); sample > 0 && sample < legal) {
    for (std::size_t i = 0; i < sample; ++i) choice.layouts[i] = choice.layouts[i * legal / sample];
    choice.layouts.resize(sample);
    choice.about = fmt::format("{} of {} legal ones, spread evenly", sample, legal);
  }
  return choice;
}

}  // namespace choir
