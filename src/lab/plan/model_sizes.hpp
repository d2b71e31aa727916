#pragma once
// Models to plan without a deck file: well-known published models as decks, and the search for the
// largest model of usual proportions whose simplest layout fills a share of the ranks' memory.
// Sizes are chosen to suit kernels and layouts: heads of 64 or 128, widths that eight tensor ranks
// divide, an even number of layers. Local.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/lab/plan/layout_plan.hpp"

namespace choir {

/// The names of the presets, "gpt2", "llama3-8b" ...; their sizes are the published ones.
std::vector<std::string> preset_names();
/// Returns the text of a deck with random tokens, in bf16-mixed and micro-batches of one sequence
/// of full length; "" for an unknown name.
std::string preset_deck(const std::string& name);

struct ModelSize {
  std::int64_t layers = 0, heads = 0, kv_heads = 0, width = 0, ffn_width = 0;
  double weights = 0;  ///< without embeddings, norms and biases
};

/// The kinds of models: "llama" has RMSNorm, SwiGLU, rotary positions and grouped queries, "gpt"
/// has GPT-2's block.
std::vector<std::string> model_likes();
/// The sizes to choose from, ascending. Pure.
std::vector<ModelSize> model_sizes(const std::string& like);
/// Returns the sizes that are legal with these overrides, ascending. Throws DeckError if there is
/// none, or if the overrides set sizes.
std::vector<ModelSize> legal_sizes(const FamilyTable& families, const std::string& like,
                                   const std::vector<std::string>& overrides);
/// Returns the text of a deck with random tokens, as presets have them. Pure.
std::string sized_deck(const std::string& like, const ModelSize& size);

struct FillRange {
  double low = 0, high = 0;  ///< shares of the memory of a rank
};
/// Parses "0.85:0.90". Throws DeckError.
FillRange fill_range(const std::string& words);

struct SizeRequest {
  const FamilyTable& families;
  std::string like;
  FillRange fill;
  std::vector<std::string> overrides;  ///< key.path=value; must not set the sizes
  PlanCase place;                      ///< ranks and target; its deck is ignored
};

struct SizedModel {
  ModelSize size;
  std::string deck;               ///< a deck of this size with its layout and the overrides
  LayoutPlan plan;                ///< an exact plan
  double share = 0;               ///< used share of the fullest rank's memory
  std::optional<ModelSize> next;  ///< the next larger size, which was too large
  int planned = 0;                ///< number of sizes that were tried
};

/// Searches with parallel.data = "auto" in the simplest layout that fits, as `choir plan` finds it;
/// otherwise in the layout of the overrides. Throws DeckError if the overrides set sizes, or if
/// even the smallest model is too large. The share may be below `fill.low`, because sizes are
/// discrete.
SizedModel search_size(const SizeRequest& request);

/// The result without its deck.
std::string to_string(const SizedModel& found, const SizeRequest& request);

}  // namespace choir
