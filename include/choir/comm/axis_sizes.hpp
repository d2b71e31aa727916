#pragma once
// The ways to share ranks out among the axes: what every search for a layout goes through. Which of
// them a deck can have is said where decks are checked. Pure.
#include <vector>

namespace choir {

struct AxisSizes {
  int tensor = 1, context = 1, pipeline = 1, data = 1;
  int ranks() const { return tensor * context * pipeline * data; }
};

/// All with exactly so many ranks; tensor, context and pipeline ascending, the last fastest.
std::vector<AxisSizes> axis_sizes_of(int ranks);

}  // namespace choir
