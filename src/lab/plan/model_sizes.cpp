#include "src/lab/plan/model_sizes.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <numeric>

#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/lab/plan/layout_search.hpp"
#include "src/lab/plan/plan_report.hpp"

namespace choir {
namespace {

/// The sizes come from the published config.json. A vocabulary of 50,257 tokens means GPT-2.
struct Preset {
  const char* name;
  int layers, heads, kv_heads, width, ffn, block, vocabulary;
  double theta;
  bool tied;
};
constexpr std::array<Preset, 13> kPresets{{
    {"gpt2", 12, 12, 12, 768, 3072, 1024, 50257, 0, true},
    {"gpt2-medium", 24, 16, 16, 1024, 4096, 1024, 50257, 0, true},
    {"gpt2-large", 36, 20, 20, 1280, 5120, 1024, 50257, 0, true},
    {"gpt2-xl", 48, 25, 25, 1600, 6400, 1024, 50257, 0, true},
    {"llama2-7b", 32, 32, 32, 4096, 11008, 4096, 32000, 10000, false},
    {"llama2-13b", 40, 40, 40, 5120, 13824, 4096, 32000, 10000, false},
    {"llama2-70b", 80, 64, 8, 8192, 28672, 4096, 32000, 10000, false},
    {"llama3.2-1b", 16, 32, 8, 2048, 8192, 8192, 128256, 500000, true},
    {"llama3.2-3b", 28, 24, 8, 3072, 8192, 8192, 128256, 500000, true},
    {"llama3-8b", 32, 32, 8, 4096, 14336, 8192, 128256, 500000, false},
    {"llama3-70b", 80, 64, 8, 8192, 28672, 8192, 128256, 500000, false},
    // The same sizes, planned with the 8,192 positions of Llama 3.
    {"llama3.1-8b", 32, 32, 8, 4096, 14336, 8192, 128256, 500000, false},
    {"llama3.1-70b", 80, 64, 8, 8192, 28672, 8192, 128256, 500000, false},
}};

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

std::string preset_deck(const std::string& name) {
  const auto* found = std::find_if(kPresets.begin(), kPresets.end(),
                                   [&](const Preset& p) { return p.name == name; });
  if (found == kPresets.end()) return {};
  const std::string style =
      found->theta == 0
          ? R"("norm": "layernorm", "activation": "gelu_tanh", "position": "learned", "bias": true)"
          : fmt::format(R"("norm": "rmsnorm", "activation": "swiglu", "position": "rope", )"
                        R"("rope_theta": {}, "bias": false)",
                        found->theta);
  return fmt::format(R"({{"model": {{"n_layer": {}, "n_head": {}, "n_kv_head": {}, "n_embd": {}, )"
                     R"("ffn_width": {}, "block_size": {}, "vocab_size": {}, "tied": {}, {}}},)"
                     "\n"
                     R"( "data": {{"format": "synthetic"}},)"
                     "\n"
                     R"( "train": {{"precision": "bf16-mixed", "micro_batch_size": 1}}}})",
                     found->layers, found->heads, found->kv_heads, found->width, found->ffn,
                     found->block, found->vocabulary, found->tied, style);
}

namespace {

/// Properties that models of a kind share. `slim` and `stout` limit the ratio of width to layers;
/// published models lie between them (GPT-2 33 to 64, GPT-3 128; Llama 102 to 130, Qwen2.5 37 to
/// 128).
struct Style {
  const char* name;
  double slim, stout;
  double ffn;             // widths
  int matrices;           // matrices of the feed-forward layer
  std::int64_t kv_heads;  // maximum; 0: the number of heads
  const char* keys;
};
constexpr Style kStyles[] = {
    {"llama", 48, 144, 3.5, 3, 8,
     R"("norm": "rmsnorm", "activation": "swiglu", "position": "rope", "rope_theta": 500000,
    "bias": false, "tied": false, "block_size": 4096, "vocab_size": 128256)"},
    {"gpt", 40, 128, 4, 2, 0,
     R"("norm": "layernorm", "activation": "gelu_tanh", "position": "learned", "bias": true,
    "tied": true, "block_size": 2048, "vocab_size": 50304)"},
};

const Style& style_of(const std::string& like) {
  const auto* found = std::find_if(std::begin(kStyles), std::end(kStyles),
                                   [&](const Style& style) { return style.name == like; });
  if (found == std::end(kStyles))
    throw DeckError(fmt::format("unknown --like {}", like), "legal: " + join(model_likes(), ", "));
  return *found;
}

/// Widths up to 32768: heads are 64 wide below 4096, then 128; from 512 on, eight tensor ranks
/// divide them.
std::vector<std::int64_t> widths() {
  std::vector<std::int64_t> all{128, 192, 256, 320, 384, 448};
  for (std::int64_t width = 512; width < 4096; width += 512) all.push_back(width);
  for (std::int64_t width = 4096; width <= 32768; width += 1024) all.push_back(width);
  return all;
}

ModelSize size_of(const Style& style, std::int64_t width, std::int64_t layers) {
  ModelSize size{.layers = layers, .width = width};
  const std::int64_t head = width < 4096 ? 64 : 128;
  size.heads = width / head;
  size.kv_heads = style.kv_heads == 0 ? size.heads : std::gcd(size.heads, style.kv_heads);
  const double ffn = style.ffn * static_cast<double>(width);
  size.ffn_width = (static_cast<std::int64_t>(ffn) + 255) / 256 * 256;
  const auto block = static_cast<double>(2 * width * (width + size.kv_heads * head) +
                                         style.matrices * width * size.ffn_width);
  size.weights = static_cast<double>(layers) * block;
  return size;
}

std::string text_of(const ModelSize& size) {
  return fmt::format(
      "{} layers of width {}, {}{}, feed-forward {}", size.layers, size.width,
      counted(size.heads, "head"),
      size.kv_heads == size.heads ? "" : fmt::format(" ({} of keys and values)", size.kv_heads),
      size.ffn_width);
}

void refuse_sizes(const std::vector<std::string>& overrides) {
  constexpr const char* kChosen[] = {"model.type",      "model.n_layer", "model.n_head",
                                     "model.n_kv_head", "model.n_embd",  "model.head_width",
                                     "model.ffn_width"};
  for (const std::string& word : overrides) {
    const std::string key = word.substr(0, word.find('='));
    if (std::ranges::find(kChosen, key) != std::end(kChosen))
      throw DeckError(fmt::format("--fill chooses {}, but the command line sets it", key),
                      "omit it, or plan that model without --fill");
  }
}

class SizeSearch {
 public:
  explicit SizeSearch(const SizeRequest& request)
      : request_(request),
        sizes_(legal_sizes(request.families, request.like, request.overrides)),
        place_(request.place) {
    // A model that fits into this part of the memory does not exceed the upper end of the range.
    place_.target.memory *= request.fill.high;
  }

  SizedModel run() {
    for (std::size_t at = largest();;) {
      LayoutPlan plan = exact(at);
      if (plan.fits()) return found(at, std::move(plan));
      choices_.at(at).reset();  // the outline was a little too small
      at = below(at);
    }
  }

 private:
  DeckVariants variants(std::size_t at) const {
    return {request_.families, sized_deck(request_.like, sizes_[at]), "--fill", request_.overrides};
  }

  /// The simplest fitting layout of a size, planned in outline, as changes to its deck.
  std::optional<std::vector<std::string>> choose(std::size_t at) const {
    const DeckVariants decks = variants(at);
    PlanCase one = place_;
    one.deck = decks.with({});
    if (one.deck.parallel.data == 0) {
      LayoutSearch search = search_layouts(one, decks, 1);
      if (search.fitting.empty()) return std::nullopt;
      return std::move(search.fitting.front().changes);
    }
    if (!plan_layout(one, Detail::outline).fits()) return std::nullopt;
    return std::vector<std::string>{};
  }
  bool fits(std::size_t at) {
    if (!choices_.contains(at)) choices_[at] = choose(at);
    return choices_.at(at).has_value();
  }

  LayoutPlan exact(std::size_t at) const {
    PlanCase one = place_;
    one.deck = variants(at).with(*choices_.at(at));
    return plan_layout(one);
  }

  /// The size at which weights, master copies and AdamW's moments alone, spread over all ranks,
  /// fill the memory.
  std::size_t likely() const {
    constexpr double kBytesOfWeight = 18;
    const int on_node = std::min(place_.ranks, place_.ranks_per_node);
    const double weights = place_.target.memory_of_rank(on_node) * place_.ranks / kBytesOfWeight;
    const auto above = std::ranges::lower_bound(sizes_, weights, {}, &ModelSize::weights);
    return std::min(static_cast<std::size_t>(above - sizes_.begin()), sizes_.size() - 1);
  }

  std::size_t below(std::size_t at) {
    while (at > 0)
      if (fits(--at)) return at;
    throw DeckError(fmt::format("even {} does not fit into {:.0f} % of the memory of {} of {}",
                                text_of(sizes_.front()), 100 * request_.fill.high,
                                counted(place_.ranks, "rank"), request_.place.target.name),
                    "use more ranks or memory, or shorter sequences (model.block_size=...) and a "
                    "smaller vocabulary (model.vocab_size=...)");
  }

  /// The largest size that fits: doubles the step from the likely size until one fits and one does
  /// not, then bisects.
  std::size_t largest() {
    std::size_t fit = likely(), over = sizes_.size();
    for (std::size_t step = 1; !fits(fit); step *= 2) {
      if (fit == 0) return below(0);
      over = fit;
      fit -= std::min(step, fit);
    }
    for (std::size_t step = 1; over == sizes_.size() && fit + 1 < over; step *= 2) {
      const std::size_t at = std::min(fit + step, over - 1);
      (fits(at) ? fit : over) = at;
    }
    while (over - fit > 1) {
      const std::size_t at = (fit + over) / 2;
      (fits(at) ? fit : over) = at;
    }
    // Another number of layers or heads may divide differently: some larger sizes may fit again.
    constexpr std::size_t kBeyond = 4;
    for (std::size_t at = over + 1; at < std::min(over + kBeyond, sizes_.size()); ++at)
      if (fits(at)) fit = at;
    return fit;
  }

  SizedModel found(std::size_t at, LayoutPlan plan) const {
    const DeckVariants decks = variants(at);
    SizedModel model{
        .size = sizes_[at],
        .deck = written_deck(sized_deck(request_.like, sizes_[at]), decks.with(*choices_.at(at))),
        .plan = std::move(plan)};
    model.plan.memory_limit = request_.place.target.memory_of_rank(model.plan.ranks_per_node);
    model.share = model.plan.needs() / model.plan.memory_limit;
    if (at + 1 < sizes_.size()) model.next = sizes_[at + 1];
    model.planned = static_cast<int>(choices_.size());
    return model;
  }

  const SizeRequest& request_;
  std::vector<ModelSize> sizes_;
  PlanCase place_;  // with the memory that may be used
  std::map<std::size_t, std::optional<std::vector<std::string>>> choices_;
};

double share_of(std::string_view word) {
  double share = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), share);
  return error == std::errc() && stop == word.data() + word.size() ? share : -1;
}

}  // namespace

std::vector<std::string> model_likes() {
  std::vector<std::string> names;
  for (const Style& style : kStyles) names.emplace_back(style.name);
  return names;
}

std::vector<ModelSize> model_sizes(const std::string& like) {
  const Style& style = style_of(like);
  std::vector<ModelSize> sizes;
  for (const std::int64_t width : widths())
    for (std::int64_t layers = 2;
         static_cast<double>(layers) * style.slim <= static_cast<double>(width); layers += 2)
      if (static_cast<double>(layers) * style.stout >= static_cast<double>(width))
        sizes.push_back(size_of(style, width, layers));
  std::ranges::sort(sizes, {}, &ModelSize::weights);
  return sizes;
}

std::vector<ModelSize> legal_sizes(const FamilyTable& families, const std::string& like,
                                   const std::vector<std::string>& overrides) {
  refuse_sizes(overrides);
  std::map<std::int64_t, std::vector<ModelSize>> of_width;
  for (const ModelSize& size : model_sizes(like)) of_width[size.width].push_back(size);
  std::optional<DeckError> refusal;
  const auto refused = [&](const ModelSize& size) {
    try {
      parse_deck(families, sized_deck(like, size), "--fill", overrides);
      return false;
    } catch (const DeckError& error) {
      refusal = error;
      return true;
    }
  };
  // A width that is legal with few layers is legal with more: at most the sizes with too few layers
  // for a pipeline are refused.
  std::vector<ModelSize> legal;
  for (const auto& [width, sizes] : of_width) {
    auto first = sizes.begin();
    if (refused(sizes.front()))
      first = refused(sizes.back()) ? sizes.end() : std::ranges::partition_point(sizes, refused);
    legal.insert(legal.end(), first, sizes.end());
  }
  if (legal.empty()) throw DeckError(*refusal);
  std::ranges::sort(legal, {}, &ModelSize::weights);
  return legal;
}

std::string sized_deck(const std::string& like, const ModelSize& size) {
  return fmt::format(R"({{
  "model": {{
    "n_layer": {}, "n_head": {}, "n_kv_head": {}, "n_embd": {}, "ffn_width": {},
    {}
  }},
  "data": {{"format": "synthetic"}},
  "train": {{"precision": "bf16-mixed", "micro_batch_size": 1, "grad_accum": 8}}
}}
)",
                     size.layers, size.heads, size.kv_heads, size.width, size.ffn_width,
                     style_of(like).keys);
}

FillRange fill_range(const std::string& words) {
  const std::size_t colon = words.find(':');
  if (colon != std::string::npos) {
    const std::string_view all = words;
    const FillRange range{share_of(all.substr(0, colon)), share_of(all.substr(colon + 1))};
    if (range.low > 0 && range.low < range.high && range.high <= 1) return range;
  }
  throw DeckError(fmt::format("--fill {} is not a range of memory shares", words),
                  "give two numbers above 0 and at most 1, the smaller first: --fill 0.85:0.90");
}

SizedModel search_size(const SizeRequest& request) {
  return SizeSearch(request).run();
}

std::string to_string(const SizedModel& found, const SizeRequest& request) {
  const LayoutPlan& plan = found.plan;
  const int ranks = plan.layout.ranks();
  const PlanTarget& target = request.place.target;
  std::string text = fmt::format(
      "the largest {}-like model that fills {:.0f} to {:.0f} % of {} ({} of {}, {}):\n"
      "  {} parameters: {}\n",
      request.like, 100 * request.fill.low, 100 * request.fill.high, counted(ranks, "rank"),
      counted((ranks + plan.ranks_per_node - 1) / plan.ranks_per_node, "node"), plan.ranks_per_node,
      target.name, format_count(parameters_of(plan.deck)), text_of(found.size));
  text += fmt::format(
      "  layout   {}{}{}, {} x {} sequences a rank\n", plan.layout.to_string(),
      plan.deck.parallel.zero > 0 ? fmt::format(" zero={}", plan.deck.parallel.zero) : "",
      plan.deck.train.recompute == Recompute::none
          ? ""
          : fmt::format(" recompute={}", name_of(plan.deck.train.recompute)),
      plan.batch.micro, plan.batch.accum);
  text += fmt::format("  memory   {} of {}, {:.1f} %{}\n", format_bytes(plan.needs()),
                      format_bytes(plan.memory_limit), 100 * found.share,
                      found.share < request.fill.low ? ", below the requested range" : "");
  return text + (found.next ? fmt::format("  larger   {} is too large ({} sizes planned)\n",
                                          text_of(*found.next), found.planned)
                            : "  larger   none\n");
}

}  // namespace choir
