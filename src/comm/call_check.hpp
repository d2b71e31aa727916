#pragma once
// A debugging aid: before each collective, the ranks compare the calls that they are about to make.
#include <memory>
#include <string>

#include "choir/comm/communicator.hpp"

namespace choir {

/// A call that a rank is about to make. `detail` is the element type and the operation, or the
/// root.
struct PlannedCall {
  CommCall call = CommCall::barrier;
  std::uint32_t detail = 0;
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;  ///< elements, or bytes of calls without an element type
};
/// "all_reduce of 4096 f32 (sum)"
std::string describe(const PlannedCall& call);
std::uint32_t detail_of(DType dtype, ReduceOp op = ReduceOp::sum);

class CallCheck {
 public:
  /// `privately` is a communicator over the ranks to be checked that serves nothing else; `name`
  /// and `world_ranks` are those of the checked communicator.
  CallCheck(std::unique_ptr<Communicator> privately, std::string name,
            std::vector<int> world_ranks);
  /// Collective. Throws CommError on every rank with the first rank whose call differs from that of
  /// the lowest one. A rank that makes no call at all is found by the watchdog.
  void agree(const PlannedCall& mine);

 private:
  std::unique_ptr<Communicator> private_;
  std::string name_;
  std::vector<int> world_ranks_;
  std::vector<PlannedCall> calls_;
};

}  // namespace choir
