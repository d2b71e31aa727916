#pragma once
// A layout as a value: the distribution of one deck over ranks, in the words of the deck. One table
// lists the properties that can vary; the deck decides if a layout is legal. The layouts that
// `choir verify` runs are all legal ones of a deck on a number of ranks, or a small subset in which
// every compatible pair of values occurs. The selection is pure and gives the same result on every
// machine.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "choir/deck/deck.hpp"

namespace choir {

/// The properties of a run that can vary, in the order in which they are printed.
enum class LayoutAxis {
  data,
  tensor,
  pipeline,
  context,
  context_mode,
  sequence,
  zero,
  zero_group,
  schedule,
  virtual_stages,
  micro_batch,
  recompute,
  offload,
  offload_gradients,
  order,
  tile,
  head_chunk,
  attention_chunk,
  preload
};
inline constexpr int kLayoutAxes = 19;

/// The user's word for an axis ("dp"), the key of the deck, and the value that means "not". The
/// size of a micro-batch and the rows of a chunk of the head have no such value: the plain ones are
/// those of the deck.
struct LayoutAxisName {
  const char* word;
  const char* key;
  const char* plain;
};
const LayoutAxisName& name_of(LayoutAxis axis);

/// The values as words of a deck. The default is one rank with nothing switched on.
class VerifyLayout {
 public:
  VerifyLayout();

  const std::string& operator[](LayoutAxis axis) const { return values_[index(axis)]; }
  std::string& operator[](LayoutAxis axis) { return values_[index(axis)]; }
  /// The size of one of the four axes that divide ranks; it is always a number.
  int size(LayoutAxis axis) const;
  int ranks() const;
  friend bool operator==(const VerifyLayout&, const VerifyLayout&) = default;

  /// Formats the sizes and all other values that are not plain: "dp=2 tp=2 pp=1 cp=1 sequence=true
  /// zero=1".
  std::string to_string() const;

 private:
  static std::size_t index(LayoutAxis axis) { return static_cast<std::size_t>(axis); }
  std::array<std::string, kLayoutAxes> values_;
};

/// The words of layouts: "dp=, tp=, ...".
std::string layout_words();

/// Parses "dp=2 tp=2, dp=4 zero=3": layouts separated by commas, words by blanks; axes that are not
/// listed are plain. Throws DeckError with the legal words; with `families` it also says where keys
/// of decks that are no words belong.
std::vector<VerifyLayout> parse_layouts(const std::string& text,
                                        const FamilyTable* families = nullptr);

/// Returns a copy of the deck in this layout, with every axis set, including those that the deck
/// itself sets. Appends all complaints of the deck's table, its checks and the batch rule to
/// `problems`. An axis whose key the deck does not have may only be plain.
Deck lay_out(const Deck& deck, const VerifyLayout& layout, std::vector<KeyProblem>& problems);

/// Returns every legal layout of up to `ranks` ranks with the values that the deck's table accepts,
/// each only where it has an effect (no schedule of one stage, no order of one axis). The batch of
/// a step is the deck's, which must be resolved for one rank; up to four micro-batch sizes that
/// divide it are used. The last three axes concern the memory of one rank alone: to keep the number
/// of layouts small, they are varied one at a time, and only in layouts whose zero_group,
/// micro_batch, offload, order and tile are plain.
std::vector<VerifyLayout> legal_layouts(const Deck& deck, int ranks);

/// An order of `legal` that covers every value within the first few layouts, then every pair of
/// values that occurs in any of them as early as possible (greedy, as in AETG of Cohen et al.
/// 1997), then the rarest pairs. `pairs_at`, `values_at`: the number of layouts after which every
/// pair or value has occurred.
struct Covering {
  std::vector<VerifyLayout> layouts;
  std::size_t values_at = 0, pairs_at = 0;
};
/// Stops at `most` layouts, but not before every pair has occurred.
Covering covering_order(const std::vector<VerifyLayout>& legal, std::size_t most);

/// The layouts that a user requested: "all" (at least 150 layouts, every pair), "quick" (at least
/// 32 of them, every value), "exhaustive", "exhaustive:N" (N of them, spread evenly), or a list for
/// parse_layouts().
struct LayoutSelection {
  std::vector<VerifyLayout> layouts;  ///< consecutive layouts use the same ranks where possible
  std::string about;                  ///< "32 of 96 legal ones: every value, ..."
};
/// Chooses the layouts of `wish`. Throws DeckError for a listed layout that is not legal or has too
/// many ranks.
LayoutSelection choose_layouts(const Deck& deck, int ranks, const std::string& wish);

}  // namespace choir
