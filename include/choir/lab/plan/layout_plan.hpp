#pragma once
// The plan of a whole layout, made on one process. Ranks that differ only along the data axis do
// the same on other samples and hold slices of equal size, so they need the same memory and send
// the same messages (their work differs by their shares of the gradient norm): one rank of each
// role (stage, tensor rank, context rank) is planned, by the same real step on the null device from
// which that rank allocates when it trains. Local.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "choir/lab/plan/calibration.hpp"
#include "choir/lab/plan/step_time.hpp"
#include "choir/lab/plan/target.hpp"
#include "choir/train/step/run_setup.hpp"
#include "choir/train/step/step_planner.hpp"

namespace choir {

/// A deck, the ranks it is to run on, and what they are.
struct PlanCase {
  Deck deck;  ///< knows its vocabulary
  int ranks = 1;
  int ranks_per_node = 1;
  PlanTarget target;
  std::vector<BatchShape> shapes, evaluation_shapes;  ///< of speech, see EngineOptions
  /// What the time of a step is predicted from; nullptr: it is not.
  std::shared_ptr<const Calibration> calibration{};
};

struct RolePlan {
  int rank = 0;  ///< the first of this role
  Coordinates at;
  StepPlan plan;
  WorkRecord work{};  ///< with a calibration: what a step does
};

struct LayoutPlan {
  Deck deck;  ///< with its batch resolved
  Layout layout;
  BatchSizes batch;
  int ranks_per_node = 1;
  double memory_limit = 0;  ///< bytes a rank may use
  /// The host memory beside a card; 0: not known, or `memory_limit` is of host memory.
  double host_limit = 0;
  bool on_host = false;          ///< a processor computes: what lies on the host counts as well
  bool waits_for_saves = false;  ///< with checkpoint.async "auto": no room for copies of the state
  std::vector<RolePlan> roles;   ///< by rank; each stands for ranks_of_role() ranks
  double bubble = 0;             ///< idle share of the pipeline's time, see bubble_fraction()
  std::optional<StepTime> time{};  ///< with a calibration
  /// Targets of a step of all ranks; where sequences differ in length, micro-batches.
  double units = 0;

  double units_per_second() const { return time ? units / time->seconds : 0; }
  int ranks_of_role() const { return layout.size(Axis::data); }
  const RolePlan& fullest() const;  ///< the role that needs most memory
  /// Bytes of the memory that `memory_limit` is of: of a role, and the most of all.
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
  exact,    ///< every role, every micro-batch; of tensor ranks that must be alike, one
  outline,  ///< some roles, and no more micro-batches than a pipeline keeps in flight: memory but
            ///< for a few bytes a micro-batch, and the bubble; FLOPs and traffic are too small
};

/// Throws DeckError for what the deck's checks, or those of the layout and the batch, refuse.
LayoutPlan plan_layout(const PlanCase& request, Detail detail = Detail::exact);

/// Simulates parallel.schedule with stages whose forward and backward take as long as they have
/// FLOPs (backward twice the forward, with full recomputation three times), messages free. 0 for
/// one stage. `stage_flops`: of one step.
double bubble_fraction(const Deck& deck, std::int64_t micro_batches,
                       const std::vector<double>& stage_flops);

/// N ranks fill nodes of --gpus-per-node, or are fewer
/// than one node has: DeckError otherwise, with the nearest legal values.
void require_nodes(int ranks, int ranks_per_node);

/// --ranks, or what the deck's own sizes make. DeckError below 1.
int ranks_asked(const std::optional<int>& asked, const Deck& deck);
/// Asked for, or the most of the usual number that fill nodes. DeckError where they do not fill
/// them.
int ranks_per_node_asked(const std::optional<int>& asked, int ranks, const PlanTarget& target);
/// Local. Workspaces of the cpu grow with the threads of a rank: as many as it would have in
/// training.
void take_threads_of(const PlanCase& request);

/// "parameters, master 12.0 MiB + gradients 12.0 MiB + ...": memory of the device.
std::string memory_text(const MemoryPlan& plan);
/// Bytes of all entries of parameters there.
double parameter_bytes(const MemoryPlan& plan);

}  // namespace choir
