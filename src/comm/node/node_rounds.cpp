#include "src/comm/node/node_rounds.hpp"

namespace choir {

NodeRounds::NodeRounds(int nodes, bool in_tree) : nodes_(nodes) {
  int left = nodes;
  for (int factor = 2; left > 1;) {
    if (factor > 2 && in_tree) factor = left;
    if (left % factor != 0) {
      ++factor;
      continue;
    }
    radices_.push_back(factor);
    left /= factor;
  }
  if (radices_.empty()) radices_.push_back(1);
  int stride = 1;
  for (const int radix : radices_) {
    strides_.push_back(stride);
    stride *= radix;
  }
  owners_.resize(static_cast<std::size_t>(nodes));
  for (int node = 0; node < nodes; ++node)
    owners_[static_cast<std::size_t>(held(node, count()).first)] = node;
}

int NodeRounds::digit(int node, int round) const {
  return node / strides_[static_cast<std::size_t>(round)] % radix(round);
}

int NodeRounds::peer(int node, int round, int digit) const {
  return node + (digit - this->digit(node, round)) * strides_[static_cast<std::size_t>(round)];
}

NodeRounds::Slices NodeRounds::held(int node, int rounds) const {
  Slices slices{0, nodes_};
  for (int round = 0; round < rounds; ++round) {
    slices.count /= radix(round);
    slices.first += digit(node, round) * slices.count;
  }
  return slices;
}

}  // namespace choir
