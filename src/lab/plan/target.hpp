#pragma once
// The hardware that a plan is made for: a GPU by its name, or this machine.
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "choir/device/device.hpp"

namespace choir {

/// The share of the memory of a node without GPUs that `choir tune` uses. The rest is for the
/// system, the program, its readers and buffers.
inline constexpr double kTunedShareOfNode = 0.8;

struct PlanTarget {
  std::string name;                   ///< "H200", "the processor of this machine"
  DeviceKind kind = DeviceKind::cpu;  ///< the kind of device whose workspaces are planned
  double memory = 0;                  ///< bytes of one GPU or of the node
  bool node_memory = false;           ///< the ranks of a node share `memory`
  double peak_flops = 0;              ///< dense 16-bit products of one card; 0: unknown
  int multiprocessors = 132;          ///< of one card, for the estimate of NCCL's memory
  int compute_major = 9;              ///< its compute capability, for the same
  double host_memory = 0;             ///< of a node with GPUs; 0: unknown
  int ranks_per_node = 1;             ///< the usual number, used by default
  bool assumed_node = false;          ///< `ranks_per_node` is not that of a known machine
  std::string note{};                 ///< what the plan cannot say for this target; "": nothing
  /// The memory that one rank may use.
  double memory_of_rank(int ranks_on_node) const {
    return node_memory ? memory / ranks_on_node : memory;
  }
};

/// The legal keys: cards ("a100", "a100-40", "h100", "mi300x" ...), "cpu", "here".
std::vector<std::string> target_keys();

/// Finds a target. Local. `key` "" means the device that the deck would use on this machine: its
/// GPUs if it has some and the deck allows them, else its processor. GPUs count with the part of
/// their memory that training uses. Throws DeckError for an unknown key (with the legal ones), for
/// a GPU that cannot compute in the deck's precision, and for device = "cuda" on a machine without
/// GPU.
PlanTarget find_target(const std::string& key, const Deck& deck,
                       const std::string& option = "--target");

}  // namespace choir
