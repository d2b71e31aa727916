#include "choir/lab/verify/verify_layout.hpp"

#include <algorithm>

#include "choir/core/text.hpp"

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
    {"order", "parallel.order", "tp-cp-dp-pp"},
    {"tile", "model.tile", "1"},
}};

constexpr int kSizes = 4;  // the first four axes

[[noreturn]] void refuse(const std::string& what, const std::string& layout) {
  std::vector<std::string> words;
  for (const LayoutAxisName& name : kNames) words.push_back(name.word);
  throw DeckError(
      fmt::format("--layouts: {} in \"{}\"", what, layout),
      "legal words: " + join(words, "=, ") + "=; for example \"dp=2 tp=2 sequence=true,dp=4\"");
}

VerifyLayout parse_layout(const std::string& text) {
  VerifyLayout layout;
  std::array<bool, kLayoutAxes> given{};
  for (const std::string& word : split(text, ' ')) {
    if (word.empty()) continue;
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string name = word.substr(0, equals);
    const auto* const found = std::find_if(kNames.begin(), kNames.end(),
                                           [&](const LayoutAxisName& n) { return name == n.word; });
    if (found == kNames.end()) refuse(fmt::format("unknown word '{}'", name), text);
    if (equals + 1 >= word.size()) refuse(fmt::format("'{}' has no value", name), text);
    const auto at = static_cast<std::size_t>(found - kNames.begin());
    if (given[at]) refuse(fmt::format("'{}' is given twice", name), text);
    given[at] = true;
    const std::string value = word.substr(equals + 1);
    const bool number = value.size() < 7 && value.front() != '0' &&
                        value.find_first_not_of("0123456789") == std::string::npos;
    if (at < kSizes && !number)
      refuse(fmt::format("'{}' is not a number of ranks for '{}'", value, name), text);
    layout[static_cast<LayoutAxis>(at)] = value;
  }
  return layout;
}

bool known(LayoutAxis axis) {
  const LayoutAxisName& name = name_of(axis);
  return axis == LayoutAxis::micro_batch || refusal_of(name.key, name.plain).empty();
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

std::vector<VerifyLayout> parse_layouts(const std::string& text) {
  std::vector<VerifyLayout> layouts;
  for (const std::string& part : split(text, ',')) {
    if (trim(part).empty()) refuse("an empty layout between two commas", text);
    layouts.push_back(parse_layout(part));
  }
  if (layouts.empty()) refuse("no layout given", text);
  return layouts;
}

Deck lay_out(const Deck& deck, const VerifyLayout& layout, std::vector<KeyProblem>& problems) {
  static const auto knows = [] {
    std::array<bool, kLayoutAxes> list{};
    for (std::size_t a = 0; a < list.size(); ++a) list[a] = known(static_cast<LayoutAxis>(a));
    return list;
  }();
  std::vector<std::string> overrides;
  for (std::size_t a = 0; a < kNames.size(); ++a) {
    const std::string& value = layout[static_cast<LayoutAxis>(a)];
    const bool plain = value == kNames[a].plain;
    // Some families have no tiles.
    if (static_cast<LayoutAxis>(a) == LayoutAxis::tile && plain &&
        deck.family().keys().find(kNames[a].key) == nullptr)
      continue;
    if (!plain || knows[a])
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

}  // namespace choir
