#pragma once
// A layout as a value: the distribution of one deck over ranks, in the words of the deck. One table
// lists the properties that can vary; the deck decides if a layout is legal.
#include <array>
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
  order,
  tile
};
inline constexpr int kLayoutAxes = 15;

/// The user's word for an axis ("dp"), the key of the deck, and the value that means "not". The
/// size of a micro-batch has no such value: it is a property of the deck.
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

/// Parses "dp=2 tp=2, dp=4 zero=3": layouts separated by commas, words by blanks; axes that are not
/// listed are plain. Throws DeckError with the legal words.
std::vector<VerifyLayout> parse_layouts(const std::string& text);

/// Returns a copy of the deck in this layout, with every axis set, including those that the deck
/// itself sets. Appends all complaints of the deck's table, its checks and the batch rule to
/// `problems`. An axis whose key the deck does not have may only be plain.
Deck lay_out(const Deck& deck, const VerifyLayout& layout, std::vector<KeyProblem>& problems);

}  // namespace choir
