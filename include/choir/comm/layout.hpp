#pragma once
// Mapping of world ranks to coordinates on the mesh axes. A pure value without MPI, for any size
// and rank.
//
// `axis` is a mesh direction, `dim` a tensor direction. With the default order "tp-cp-dp-pp" the
// tensor axis varies fastest: rank = tp + T*(cp + C*(dp + D*pp)). Megatron-LM uses the same
// convention.
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

enum class Axis { tensor, context, data, pipeline };
inline constexpr int kAxes = 4;
/// "tp", "cp", "dp", "pp"
std::string_view short_name(Axis axis);

struct Coordinates {
  std::array<int, kAxes> at{};
  int operator[](Axis axis) const { return at[static_cast<std::size_t>(axis)]; }
  int& operator[](Axis axis) { return at[static_cast<std::size_t>(axis)]; }
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

class Layout {
 public:
  /// A layout of one rank.
  Layout() = default;
  /// `order` lists the four short names, fastest first. Throws DeckError for an order that is not a
  /// permutation and for sizes below 1.
  Layout(int tensor, int context, int data, int pipeline, std::string_view order = "tp-cp-dp-pp");

  int size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  int ranks() const;
  const std::string& order() const { return order_; }

  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& coordinates) const;
  /// Ranks that differ from `rank` only along `axes`, ascending: the group that contains `rank`.
  std::vector<int> group(int rank, const std::vector<Axis>& axes) const;
  /// All groups along `axes`, each ascending, ordered by their first rank.
  std::vector<std::vector<int>> groups(const std::vector<Axis>& axes) const;
  /// Ranks that differ from `rank` only along data and context: they hold the same parameters and
  /// compute gradients of different tokens. The context index varies fastest, in any order of the
  /// layout.
  std::vector<int> replicas(int rank) const;
  /// "dp=4 tp=1 pp=1 cp=1"
  std::string to_string() const;

 private:
  std::array<int, kAxes> sizes_{1, 1, 1, 1};
  std::array<Axis, kAxes> fastest_first_{Axis::tensor, Axis::context, Axis::data, Axis::pipeline};
  std::string order_ = "tp-cp-dp-pp";
};

/// Sizes of the axes. The checks of a deck decide which of them are allowed.
struct AxisSizes {
  int tensor = 1, context = 1, pipeline = 1, data = 1;
  int ranks() const { return tensor * context * pipeline * data; }
};

/// All sizes of axes with exactly this many ranks, with tensor, context and pipeline ascending,
/// pipeline fastest.
std::vector<AxisSizes> axis_sizes_of(int ranks);

}  // namespace choir
