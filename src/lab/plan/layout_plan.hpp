#pragma once
// The plan of a whole layout, made on one process, and the variants of a deck that are planned.
// Ranks that differ only along the data axis do the same work on other samples and hold slices of
// equal size, so they need the same memory and send the same messages (their work differs by their
// shares of the gradient norm). One rank of each role (stage, tensor rank, context rank) is
// planned, by the same real step on the null device from which that rank allocates when it trains.
// Local.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "src/lab/plan/calibration.hpp"
#include "src/lab/plan/step_time.hpp"
#include "src/lab/plan/target.hpp"

#include "src/train/step/memory_fit.hpp"

namespace choir {

class DeckVariants {
 public:
  /// The text of a deck, its file name, and the overrides of the command line. `vocabulary` is used
  /// if the deck takes its vocabulary from the data. The families must outlive this object.
  DeckVariants(const FamilyTable& families, std::string text, std::string path,
               std::vector<std::string> overrides, std::int64_t vocabulary = 0);

  /// Parses the deck with these "key.path=value" changes in place of the given values. Throws
  /// DeckError.
  Deck with(const std::vector<std::string>& changes) const;
  /// Parses the deck in the same way; nullopt if it would be refused.
  std::optional<Deck> legal_with(const std::vector<std::string>& changes) const;

 private:
  const FamilyTable* families_;
  std::string text_, path_;
  std::vector<std::string> overrides_;
  std::int64_t vocabulary_;
};

/// Returns `text` with the values that `deck`, parsed from it, got on the command line. Keys keep
/// their order; comments are lost. Pure.
std::string written_deck(const std::string& text, const Deck& deck);

/// A deck, the ranks that it is to run on, and their hardware.
struct PlanCase {
  Deck deck;  ///< its vocabulary size is known
  int ranks = 1;
  int ranks_per_node = 1;
  PlanTarget target;
  std::vector<Axis> kept{};  ///< axes whose sizes in the deck a search must not change
  std::vector<BatchShape> shapes, evaluation_shapes;  ///< with speech, see EngineOptions
  MemoryPlan scorers;                                 ///< see EngineOptions
  /// The source of time predictions; nullptr: no prediction.
  std::shared_ptr<const Calibration> calibration{};
};

struct RolePlan {
  int rank = 0;  ///< the first of this role
  Coordinates at;
  StepPlan plan;
  WorkRecord work{};  ///< the work of a step, filled in with a calibration
};

struct LayoutPlan {
  Deck deck;  ///< with its batch resolved
  Layout layout;
  BatchSizes batch;
  int ranks_per_node = 1;
  double memory_limit = 0;  ///< bytes a rank may use
  /// The host memory in addition to a GPU's; 0: unknown, or `memory_limit` is host memory.
  double host_limit = 0;
  bool on_host = false;  ///< the processor computes: data on the host also counts
  /// There is no room for copies of the state (checkpoint.async "auto").
  bool waits_for_saves = false;
  HeadMemory head{};               ///< of a rank that has the head
  std::string tiles{};             ///< tiles_text()
  std::vector<RolePlan> roles;     ///< by rank; each represents ranks_of_role() ranks
  double bubble = 0;               ///< idle share of the pipeline's time; see bubble_fraction()
  std::optional<StepTime> time{};  ///< with a calibration
  /// Targets of a step on all ranks; micro-batches if sequences differ in length.
  double units = 0;

  double units_per_second() const { return time ? units / time->seconds : 0; }
  int ranks_of_role() const { return layout.size(Axis::data); }
  const RolePlan& fullest() const;  ///< the role that needs the most memory
  /// Bytes of the memory that `memory_limit` limits: of a role, and the most of all roles.
  double needs(const RolePlan& role) const;
  double needs() const { return needs(fullest()); }
  double host_needs() const;  ///< the most host memory of a role
  bool fits() const {
    return needs() <= memory_limit && (host_limit == 0 || host_needs() <= host_limit);
  }
  double flops() const;         ///< of one step, all ranks
  StepTraffic traffic() const;  ///< of one step, the sum of all ranks
};

enum class Detail {
  exact,    ///< every role, every micro-batch; of tensor ranks that must be equal, only one
  outline,  ///< some roles, and no more micro-batches than a pipeline has in flight: memory is
            ///< exact except for a few bytes per micro-batch, and so is the bubble; FLOPs and
            ///< traffic are too small
};

/// Plans a layout. Throws DeckError if the checks of the deck, the layout or the batch refuse it.
LayoutPlan plan_layout(const PlanCase& request, Detail detail = Detail::exact);

/// Simulates parallel.schedule. The time of a stage's forward is proportional to its FLOPs, that of
/// its backward is twice as long (with full recomputation three times), and messages are free.
/// Returns 0 for one stage. `stage_flops` counts one step.
double bubble_fraction(const Deck& deck, std::int64_t micro_batches,
                       const std::vector<double>& stage_flops);

/// Throws DeckError, with the nearest legal values, unless the ranks fill nodes of --gpus-per-node
/// or are fewer than one node has.
void require_nodes(int ranks, int ranks_per_node);

/// Returns --ranks, or the number that follows from the deck's own sizes. Throws DeckError below 1.
int ranks_asked(const std::optional<int>& asked, const Deck& deck);
/// Returns the requested number, or the largest number up to the usual one that fills nodes. Throws
/// DeckError if a requested number does not fill them.
int ranks_per_node_asked(const std::optional<int>& asked, int ranks, const PlanTarget& target);
/// Sets the number of threads to that of a rank in training, because CPU workspaces grow with it.
/// Local.
void take_threads_of(const PlanCase& request);

/// Formats the memory of the device: "parameters, master 12.0 MiB + gradients 12.0 MiB + ...".
std::string memory_text(const MemoryPlan& plan);
/// Bytes of all parameter entries on the device.
double parameter_bytes(const MemoryPlan& plan);

}  // namespace choir
