#pragma once
// A layout as a value: how one deck is spread over ranks, in words of the deck. What may be varied
// stands in one table; whether a layout is legal is asked of the deck.
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "choir/deck/deck.hpp"

namespace choir {

/// What of a run can be laid out in several ways, in the order in which it is printed.
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
  order,
  tile
};
inline constexpr int kLayoutAxes = 15;

/// How users write an axis ("dp"), which key of the deck it is, and the value that means "not".
/// The size of a micro-batch has none: it is a property of the deck.
struct LayoutAxisName {
  const char* word;
  const char* key;
  const char* plain;
};
const LayoutAxisName& name_of(LayoutAxis axis);

/// The values as words of a deck. By default one rank with nothing switched on.
class VerifyLayout {
 public:
  VerifyLayout();

  const std::string& operator[](LayoutAxis axis) const { return values_[index(axis)]; }
  std::string& operator[](LayoutAxis axis) { return values_[index(axis)]; }
  /// The size of one of the four axes that divide ranks; a number for certain.
  int size(LayoutAxis axis) const;
  int ranks() const;
  friend bool operator==(const VerifyLayout&, const VerifyLayout&) = default;

  /// "dp=2 tp=2 pp=1 cp=1 sequence=true zero=1": the sizes, and what else is not plain.
  std::string to_string() const;

 private:
  static std::size_t index(LayoutAxis axis) { return static_cast<std::size_t>(axis); }
  std::array<std::string, kLayoutAxes> values_;
};

/// "dp=2 tp=2, dp=4 zero=3": layouts parted by commas, words by blanks; what is not named is plain.
/// Throws DeckError with the legal words.
std::vector<VerifyLayout> parse_layouts(const std::string& text);

/// The deck laid out so: a copy with every axis set, also those that the deck itself sets. Appends
/// everything that the deck's table and checks and the batch rule complain about to `problems`.
/// An axis whose key the deck does not know may only be plain.
Deck lay_out(const Deck& deck, const VerifyLayout& layout, std::vector<KeyProblem>& problems);

}  // namespace choir
