#pragma once
// The largest model of usual proportions whose simplest layout fills a share of the memory that
// ranks have. Sizes are such as kernels and layouts like them: heads of 64 or 128, widths that
// eight tensor ranks divide, an even number of layers. Local.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choir/lab/plan/layout_plan.hpp"

namespace choir {

struct ModelSize {
  std::int64_t layers = 0, heads = 0, kv_heads = 0, width = 0, ffn_width = 0;
  double weights = 0;  ///< without embeddings, norms and biases
};

/// "llama": RMSNorm, SwiGLU, rotary positions, grouped queries. "gpt": GPT-2's block.
std::vector<std::string> model_likes();
/// Pure. The sizes to choose from, ascending.
std::vector<ModelSize> model_sizes(const std::string& like);
/// Those that are legal with these overrides, ascending. Throws DeckError where none is, and where
/// the overrides set sizes.
std::vector<ModelSize> legal_sizes(const std::string& like,
                                   const std::vector<std::string>& overrides);
/// Pure. The text of a deck with random tokens, as that of presets.
std::string sized_deck(const std::string& like, const ModelSize& size);

struct FillRange {
  double low = 0, high = 0;  ///< shares of the memory of a rank
};
/// "0.85:0.90". Throws DeckError.
FillRange fill_range(const std::string& words);

struct SizeRequest {
  std::string like;
  FillRange fill;
  std::vector<std::string> overrides;  ///< key.path=value; not the sizes
  PlanCase place;                      ///< ranks and target; its deck does not matter
};

struct SizedModel {
  ModelSize size;
  std::string deck;               ///< of this size, laid out, with the overrides
  LayoutPlan plan;                ///< exact
  double share = 0;               ///< of the memory of the fullest rank
  std::optional<ModelSize> next;  ///< the next larger one, which was too large
  int planned = 0;                ///< sizes that were tried
};

/// With parallel.data = "auto" in the simplest layout that fits, as `choir plan` finds it; else in
/// that of the overrides. Throws DeckError where the overrides set sizes, and where even the
/// smallest model is too large. The share may be below `fill.low`: sizes have steps.
SizedModel search_size(const SizeRequest& request);

/// What was found, without its deck.
std::string to_string(const SizedModel& found, const SizeRequest& request);

}  // namespace choir
