#pragma once
// What a plan is made for: a card by its name, or what this machine has.
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "choir/device/device.hpp"

namespace choir {

struct PlanTarget {
  std::string name;                   ///< "H200", "the processor of this machine"
  DeviceKind kind = DeviceKind::cpu;  ///< whose workspaces are planned
  double memory = 0;                  ///< bytes, of one card or of the node
  bool node_memory = false;           ///< the ranks of a node share `memory`
  double peak_flops = 0;              ///< dense 16-bit products of one card; 0: unknown
  double host_memory = 0;             ///< of a node with cards; 0: not known
  int ranks_per_node = 1;             ///< usual, where nobody says
  /// What one rank may use.
  double memory_of_rank(int ranks_on_node) const {
    return node_memory ? memory / ranks_on_node : memory;
  }
};

/// "a100", "a100-40", "h100", "h200", "cpu", "here".
std::vector<std::string> target_keys();

/// Local. `key` "" is what the deck would take on this machine: its GPUs where it has some and the
/// deck allows them, else its processor. Cards count with the part of their memory that train
/// takes. Throws DeckError for an unknown key (with the legal ones), for a GPU that cannot compute
/// in the deck's precision, and for device = "cuda" on a machine that has none.
PlanTarget find_target(const std::string& key, const Deck& deck);

}  // namespace choir
