#pragma once
// For debugging: before each collective, the ranks tell each other what they are about to call.
#include <memory>
#include <string>

#include "choir/comm/communicator.hpp"

namespace choir {

/// What a rank is about to call. `detail` is the element type and the operation, or the root.
struct PlannedCall {
  CommCall call = CommCall::barrier;
  std::uint32_t detail = 0;
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;  ///< elements; bytes of calls that have bytes
};
/// "all_reduce of 4096 f32 (sum)"
std::string describe(const PlannedCall& call);
std::uint32_t detail_of(DType dtype, ReduceOp op = ReduceOp::sum);

class CallCheck {
 public:
  /// Takes a communicator over the ranks to be checked, which serves nothing else. `name`: of the
  /// communicator that is checked; `world_ranks`: its ranks.
  CallCheck(std::unique_ptr<Communicator> privately, std::string name,
            std::vector<int> world_ranks);
  /// Collective. CommError on every rank, naming the first rank that is about to do something else
  /// than the lowest one. A rank that makes no call at all is left to the watchdog to name.
  void agree(const PlannedCall& mine);

 private:
  std::unique_ptr<Communicator> private_;
  std::string name_;
  std::vector<int> world_ranks_;
  std::vector<PlannedCall> calls_;
};

}  // namespace choir
